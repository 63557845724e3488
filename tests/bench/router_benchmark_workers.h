// Decode workers without an engine that replay one token: each accepts what it
// is asked for and then gives all its sequences a token per step, in one frame,
// as a decode worker does. The steps of the workers are spread evenly.
//
// One gRPC server is all of them: it listens on a port for each, and each
// router that connects to one gets a worker of its own.
//
// A frame that the router's stream does not take yet waits, and with it the
// worker's next steps, up to kMaxLateSteps; what is over that is never sent.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <grpcpp/grpcpp.h>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "baton/v1/worker.grpc.pb.h"
#include "common/ids.h"
#include "tests/bench/router_benchmark_setup.h"

namespace baton::bench {

class ReplayWorkers final : private v1::WorkerControl::CallbackService {
 public:
  static constexpr int kMaxLateSteps = 4;
  static constexpr int kMaxContext = 200000;

  struct Plan {
    // Of each sequence.
    double tokens_per_second = 20;
    // After its first token a sequence gets no more.
    bool first_token_only = false;
  };
  // Since start.
  struct Counts {
    int64_t tokens = 0;
    int64_t frames = 0;
    // Steps that were never sent.
    int64_t steps_lost = 0;
    // Steps that this process took late by more than 5 ms.
    int64_t steps_late = 0;
  };

  // `board` outlives them. `fingerprint` says of which model they are.
  ReplayWorkers(int count, TokenId token,
                const v1::ModelFingerprint& fingerprint, TokenBoard* board);
  ~ReplayWorkers() override;

  // For the router's --decode. Any thread, as are the following.
  const std::vector<std::string>& addresses() const { return addresses_; }
  void SetPlan(const Plan& plan) ABSL_LOCKS_EXCLUDED(mu_);
  Counts counts() const;
  int NumSequences() const ABSL_LOCKS_EXCLUDED(mu_);
  // Workers that a router is connected to.
  int NumConnected() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  class Session;

  grpc::ServerBidiReactor<v1::RouterMessage, v1::WorkerMessage>* Connect(
      grpc::CallbackServerContext* context) override;

  v1::WorkerHello MakeHello();
  std::shared_ptr<Session> SessionAt(size_t slot) const
      ABSL_LOCKS_EXCLUDED(mu_);
  void Leave(const Session* session) ABSL_LOCKS_EXCLUDED(mu_);
  void RunSteps();

  const int count_;
  const TokenId token_;
  const v1::ModelFingerprint fingerprint_;
  TokenBoard* const board_;
  std::vector<std::string> addresses_;

  std::atomic<bool> stop_{false};
  std::atomic<bool> first_token_only_{false};
  std::atomic<int64_t> tokens_{0}, frames_{0}, lost_{0}, late_{0};
  std::atomic<uint64_t> last_incarnation_{1};

  mutable absl::Mutex mu_;
  double tokens_per_second_ ABSL_GUARDED_BY(mu_) = 20;
  // By place in the round of steps; null: free.
  std::vector<std::shared_ptr<Session>> sessions_ ABSL_GUARDED_BY(mu_);

  std::unique_ptr<grpc::Server> server_;
  std::thread stepper_;
};

}  // namespace baton::bench
