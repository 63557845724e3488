#include "worker/control_service.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/rpc/grpc_setup.h"

namespace baton::worker {
namespace {

constexpr absl::Duration kStreamEnd = absl::Seconds(60);

class ControlServiceTest : public testing::Test {
 protected:
  using Stream = grpc::ClientReaderWriter<v1::RouterMessage, v1::WorkerMessage>;

  ControlServiceTest() {
    auto server = rpc::StartServer("127.0.0.1:0", {&service_});
    EXPECT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    stub_ = v1::WorkerControl::NewStub(
        grpc::CreateChannel("127.0.0.1:" + std::to_string(server_.port),
                            grpc::InsecureChannelCredentials()));
  }

  ~ControlServiceTest() override {
    service_.Shutdown();
    server_.server->Shutdown(absl::ToChronoTime(absl::Now() + kStreamEnd));
    server_.server->Wait();
  }

  std::unique_ptr<Stream> Connect(grpc::ClientContext* context) {
    context->set_wait_for_ready(true);
    context->set_deadline(absl::ToChronoTime(absl::Now() + kStreamEnd));
    return stub_->Connect(context);
  }

  static v1::WorkerHello Hello() {
    v1::WorkerHello hello;
    hello.set_worker_name("here");
    return hello;
  }

  Inbox inbox_{64};
  SessionLeases leases_{Clock::Monotonic()};
  ControlService service_{Hello(), &inbox_, &leases_};
  rpc::RunningServer server_;
  std::unique_ptr<v1::WorkerControl::Stub> stub_;
};

// Reports go to all streams at any time: also while one begins. Not more than
// it can take, or else it ends before its hello.
TEST_F(ControlServiceTest, TheHelloComesFirst) {
  std::atomic<bool> done{false};
  std::atomic<SessionId> newest{0};  // streams are numbered from 1
  std::thread reports([&] {
    v1::WorkerMessage report;
    report.mutable_load()->set_free_blocks(1);
    while (!done) {
      if (service_.Backlogged(newest)) {
        std::this_thread::yield();
      } else {
        service_.SendToAll(report);
      }
    }
  });
  for (int i = 0; i < 300; ++i) {
    ++newest;
    grpc::ClientContext context;
    const std::unique_ptr<Stream> stream = Connect(&context);
    v1::WorkerMessage first;
    EXPECT_TRUE(stream->Read(&first));
    EXPECT_EQ(first.hello().worker_name(), "here") << first.ShortDebugString();
    context.TryCancel();
    stream->Finish();
  }
  done = true;
  reports.join();
}

// Also streams that begin meanwhile end, with a hello or without.
TEST_F(ControlServiceTest, ShutdownEndsAllStreams) {
  constexpr int kStreams = 8;
  std::atomic<int> begun{0};
  std::vector<std::thread> routers;
  for (int i = 0; i < kStreams; ++i) {
    routers.emplace_back([&] {
      while (true) {
        grpc::ClientContext context;
        const std::unique_ptr<Stream> stream = Connect(&context);
        v1::WorkerMessage first;
        const bool had_hello = stream->Read(&first);
        ++begun;
        v1::WorkerMessage none;
        EXPECT_FALSE(stream->Read(&none));
        const grpc::Status status = stream->Finish();
        if (!had_hello) {
          EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE)
              << status.error_message();
          return;
        }
        EXPECT_TRUE(first.has_hello());
        EXPECT_TRUE(status.ok()) << status.error_message();
      }
    });
  }
  while (begun < kStreams) std::this_thread::yield();
  service_.Shutdown();
  for (std::thread& router : routers) router.join();
}

}  // namespace
}  // namespace baton::worker
