// A worker without an engine: speaks the real control protocol over gRPC and
// does what the test tells it. The test takes the router's messages in the
// order in which it asks for them and answers by hand, so every interleaving
// can be played without a sleep.
//
// All functions may be called from the test's thread; waits end after
// kPatience with a failed test.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "baton/v1/worker.grpc.pb.h"
#include "common/rpc/grpc_setup.h"

namespace baton::test {

class FakeWorker final : private v1::WorkerControl::Service {
 public:
  static constexpr absl::Duration kPatience = absl::Seconds(20);

  struct Options {
    v1::WorkerHello hello;
    std::string listen = "127.0.0.1:0";
    // Answers Pair with yes by itself; no: the test answers with SendPaired.
    bool pair = true;
    // If not empty, the answer to Pair is no.
    std::string pair_refusal;
    // Answers heartbeats that ask for it. What the hello promises is its own
    // affair.
    bool answer_heartbeats = false;
  };

  // A hello that fits models/stories: 16-token blocks, a pool of 1000.
  static v1::WorkerHello Hello(v1::WorkerRole role, const std::string& name);

  explicit FakeWorker(Options options);
  ~FakeWorker() override;

  const std::string& address() const { return address_; }

  // The next message of the kind that no earlier call took.
  v1::Reserve NextReserve();
  v1::Prefill NextPrefill();
  v1::Grant NextGrant();
  v1::Cancel NextCancel();
  v1::Pair NextPair();
  v1::Heartbeat NextHeartbeat();
  v1::Vocabulary NextVocabulary();
  // Whether such a message has come and was not taken, now.
  bool HasReserve();
  bool HasPrefill();
  bool HasCancel();
  bool HasVocabulary();

  void SendGrant(uint64_t attempt);
  void SendRefusal(uint64_t attempt, v1::RefusalReason reason,
                   uint32_t retry_after_ms);
  // Because of its grammar.
  void SendGrammarRefusal(uint64_t attempt);
  void SendToken(uint64_t attempt, uint32_t index, uint32_t id,
                 v1::FinishReason finish = v1::FINISH_REASON_UNSPECIFIED);
  // Of the prompt's tokens from `first` on; with `top`, so many of the
  // likeliest with each, whose ids begin with 100.
  void SendPromptLogprobs(uint64_t attempt, uint32_t first,
                          const std::vector<float>& logprobs, uint32_t top = 0);
  void SendFirstToken(uint64_t attempt, uint32_t id,
                      const v1::PromptReport& prompt);
  void SendOk(uint64_t attempt);
  void SendOutcome(const v1::Outcome& outcome);
  void SendFailure(uint64_t attempt, const std::string& error, bool retryable);
  void SendLoad(const v1::LoadReport& load);
  const v1::WorkerHello& hello() const { return options_.hello; }
  // Names and identities of its adapters from now on.
  void SendAdapters(
      const std::vector<std::pair<std::string, std::string>>& adapters);
  void SendPaired(uint64_t decode_incarnation);
  void SendPrefixes(const v1::PrefixNews& news);

  // Breaks the stream; routers may connect again.
  void Break();
  // Breaks the stream and stops listening, as a crash does.
  void Die();

 private:
  using Stream = grpc::ServerReaderWriter<v1::WorkerMessage, v1::RouterMessage>;

  grpc::Status Connect(grpc::ServerContext* context, Stream* stream) override;

  void Take(const v1::RouterMessage& message) ABSL_LOCKS_EXCLUDED(mu_);
  v1::RouterMessage Next(v1::RouterMessage::KindCase kind)
      ABSL_LOCKS_EXCLUDED(mu_);
  bool Has(v1::RouterMessage::KindCase kind) ABSL_LOCKS_EXCLUDED(mu_);
  bool HasLocked(v1::RouterMessage::KindCase kind) const
      ABSL_SHARED_LOCKS_REQUIRED(mu_);
  // Waits for a router, so that a test may answer at once.
  void Send(const v1::WorkerMessage& message) ABSL_LOCKS_EXCLUDED(mu_);

  const Options options_;
  std::string address_;
  rpc::RunningServer running_;

  absl::Mutex mu_;
  Stream* stream_ ABSL_GUARDED_BY(mu_) = nullptr;
  grpc::ServerContext* context_ ABSL_GUARDED_BY(mu_) = nullptr;  // of stream_
  std::deque<v1::RouterMessage> received_ ABSL_GUARDED_BY(mu_);
};

}  // namespace baton::test
