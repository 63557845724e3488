// What ThreadSanitizer sees where Abseil's locks and gRPC's callbacks order
// threads: nothing without an argument; a race with the argument `lock`,
// `notification` or `callback`, where one of two threads does without. What
// either sees does not depend on when they run: `passed`, which nobody sees as
// an order, makes it one after the other. Each variable is by itself, as TSan
// remembers only the last few accesses to the same eight bytes.
#include <atomic>
#include <cstdio>
#include <memory>
#include <string>
#include <thread>

#include <grpcpp/grpcpp.h>

#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "baton/v1/inference.grpc.pb.h"

namespace baton::testing {
namespace {

void Await(const std::atomic<bool>& passed) {
  while (!passed.load(std::memory_order_relaxed)) std::this_thread::yield();
}

void CheckLock(bool race) {
  absl::Mutex mu;
  alignas(64) int value = 0;
  alignas(64) std::atomic<bool> passed = false;
  std::thread other([&] {
    {
      absl::MutexLock lock(&mu);
      ++value;
    }
    passed.store(true, std::memory_order_relaxed);
  });
  Await(passed);
  if (race) {
    ++value;
  } else {
    absl::MutexLock lock(&mu);
    ++value;
  }
  other.join();
}

void CheckNotification(bool race) {
  absl::Notification notification;
  alignas(64) int value = 0;
  alignas(64) std::atomic<bool> passed = false;
  std::thread other([&] {
    if (!race) ++value;
    notification.Notify();
    if (race) ++value;
    passed.store(true, std::memory_order_relaxed);
  });
  Await(passed);
  notification.WaitForNotification();
  ++value;
  other.join();
}

class Service final : public v1::Inference::CallbackService {
 public:
  explicit Service(int* value) : value_(value) {}

  grpc::ServerUnaryReactor* GetModel(grpc::CallbackServerContext* context,
                                     const v1::GetModelRequest* request,
                                     v1::GetModelResponse* response) override {
    ++*value_;  // after the server's start
    grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }

 private:
  int* const value_;
};

void CheckCallback(bool race) {
  int served = 1;
  alignas(64) int value = 1;
  alignas(64) std::atomic<bool> passed = false;
  Service service(&served);
  ++served;
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(),
                           &port);
  builder.RegisterService(&service);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  const auto stub = v1::Inference::NewStub(grpc::CreateChannel(
      "127.0.0.1:" + std::to_string(port), grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  v1::GetModelRequest request;
  v1::GetModelResponse response;
  absl::Notification done;
  ++value;
  stub->async()->GetModel(&context, &request, &response,
                          [&](const grpc::Status& status) {
                            if (!status.ok()) std::puts("the call failed");
                            ++value;  // after what came before the call
                            passed.store(true, std::memory_order_relaxed);
                            done.Notify();
                          });
  if (race) {
    Await(passed);
    ++value;
  }
  done.WaitForNotification();
  ++value;
  server->Shutdown();
}

int Main(int argc, char** argv) {
  const std::string race = argc > 1 ? argv[1] : "";
  CheckLock(race == "lock");
  CheckNotification(race == "notification");
  CheckCallback(race == "callback");
  return 0;
}

}  // namespace
}  // namespace baton::testing

int main(int argc, char** argv) { return baton::testing::Main(argc, argv); }
