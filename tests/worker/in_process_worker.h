// A whole worker in the test's process (real engine, UCX, gRPC), and a router's
// end of its control stream.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include "baton/v1/worker.grpc.pb.h"
#include "common/bounded_queue.h"
#include "common/rpc/grpc_setup.h"
#include "engine/engine.h"
#include "kv_transfer/transport.h"
#include "worker/worker_process.h"

namespace baton::worker {

class InProcessWorker final {
 public:
  // REQUIRES: the options name a model that loads.
  InProcessWorker(v1::WorkerRole role, WorkerOptions options,
                  MakeEngine make_engine = &engine::CreateEngine);
  ~InProcessWorker();

  WorkerLoop* loop() { return loop_.get(); }
  engine::Engine* engine() { return engine_.get(); }
  WorkerMetrics* metrics() { return metrics_.get(); }
  std::string MetricsText() const { return registry_->Text(); }
  const std::string& address() const { return address_; }
  // Waits for the loop to end; ends the process when it does not within two
  // minutes. REQUIRES: RequestDrain was called.
  void Join();

 private:
  std::unique_ptr<engine::Engine> engine_;
  std::unique_ptr<metrics::Metrics> registry_;
  std::unique_ptr<WorkerMetrics> metrics_;
  std::unique_ptr<kv_transfer::Transport> transport_;
  std::unique_ptr<Inbox> inbox_;
  SessionLeases leases_{Clock::Monotonic()};
  std::unique_ptr<ControlService> service_;
  std::unique_ptr<WorkerLoop> loop_;
  rpc::RunningServer server_;
  std::string address_;
  absl::Notification ended_;
  std::thread thread_;
};

// One control stream. Used by one thread.
class RouterStream final {
 public:
  explicit RouterStream(const std::string& address);
  // Breaks the stream as a dying router does.
  ~RouterStream();

  const v1::WorkerHello& hello() const { return hello_; }
  void Send(const v1::RouterMessage& message);

  // The next message for which `wanted` holds; others are kept for later calls.
  // Fails the test and returns an empty message after a minute.
  v1::WorkerMessage Await(
      const std::function<bool(const v1::WorkerMessage&)>& wanted);
  v1::Grant AwaitGrant(uint64_t attempt);
  v1::Refusal AwaitRefusal(uint64_t attempt);
  v1::Outcome AwaitOutcome(uint64_t attempt);
  // The next `count` tokens of the attempt, in order of arrival.
  std::vector<v1::Token> AwaitTokens(uint64_t attempt, size_t count);
  // A load report that says so many blocks are free.
  void AwaitFreeBlocks(uint32_t free_blocks);

 private:
  grpc::ClientContext context_;
  std::unique_ptr<v1::WorkerControl::Stub> stub_;
  std::unique_ptr<
      grpc::ClientReaderWriter<v1::RouterMessage, v1::WorkerMessage>>
      stream_;
  v1::WorkerHello hello_;
  BoundedQueue<v1::WorkerMessage> received_{100000};
  std::vector<v1::WorkerMessage> kept_;
  std::thread reader_;
};

}  // namespace baton::worker
