// Calls that nobody waits for.
#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/blocking_counter.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "client/client.h"
#include "tests/client/fake_router.h"

namespace baton::client {
namespace {

using ::testing::HasSubstr;

using Response = v1::GenerateResponse;

class ClientStreamTest : public testing::Test {
 protected:
  void SetUp() override {
    auto client = Client::Connect({.address = router_.address()});
    ASSERT_TRUE(client.ok()) << client.status();
    client_ = *std::move(client);
  }

  absl::Mutex mu_;
  int missing_ ABSL_GUARDED_BY(mu_) = 0;
  absl::Notification go_, gone_;
  FakeRouter router_;  // its answers use the others
  std::unique_ptr<Client> client_;
};

TEST_F(ClientStreamTest, ManyAtOnceEachGetsItsOwn) {
  constexpr int kStreams = 24;
  // Nobody is answered before all are there.
  {
    absl::MutexLock lock(&mu_);
    missing_ = kStreams;
  }
  router_.set_answer([this](grpc::ServerContext*,
                            const v1::GenerateRequest& request,
                            FakeRouter::Writer* writer) {
    {
      absl::MutexLock lock(&mu_);
      --missing_;
      mu_.AwaitWithTimeout(
          absl::Condition(
              +[](int* number) { return *number == 0; }, &missing_),
          absl::Seconds(60));
    }
    FakeRouter::Write(writer, request.text());
    FakeRouter::Write(writer, "!");
    FakeRouter::WriteLast(writer);
    return grpc::Status::OK;
  });
  std::vector<std::string> texts(kStreams);
  std::atomic<int> done = 0;
  std::vector<std::unique_ptr<GenerateCall>> calls;
  for (int i = 0; i < kStreams; ++i) {
    v1::GenerateRequest request;
    request.set_text(absl::StrCat("prompt ", i));
    calls.push_back(client_->StartGenerate(
        request, {},
        [&texts, i](const Response& response) {
          texts[i] += response.text();
          return true;
        },
        [&done](const absl::Status& status) {
          EXPECT_TRUE(status.ok()) << status;
          ++done;
        }));
  }
  for (const auto& call : calls) EXPECT_TRUE(call->Wait().ok());
  EXPECT_EQ(done, kStreams);
  for (int i = 0; i < kStreams; ++i) {
    EXPECT_EQ(texts[i], absl::StrCat("prompt ", i, "!"));
  }
}

TEST_F(ClientStreamTest, FalseEndsIt) {
  std::atomic<int> calls = 0;
  const auto call = client_->StartGenerate(
      {}, {}, [&](const Response&) { return ++calls < 3; });
  EXPECT_EQ(call->Wait(), absl::CancelledError("cancelled by the caller"));
  EXPECT_EQ(calls, 3);
  // How it ended stays.
  EXPECT_EQ(call->Wait().code(), absl::StatusCode::kCancelled);
}

TEST_F(ClientStreamTest, CancelEndsIt) {
  absl::Notification begun;
  const auto call = client_->StartGenerate({}, {}, [&](const Response&) {
    if (!begun.HasBeenNotified()) begun.Notify();
    return true;
  });
  begun.WaitForNotification();
  call->Cancel();
  EXPECT_EQ(call->Wait().code(), absl::StatusCode::kCancelled);
  call->Cancel();
}

TEST_F(ClientStreamTest, OneTokenEndsMany) {
  GenerateOptions options;
  absl::BlockingCounter begun(3);
  std::vector<std::unique_ptr<GenerateCall>> calls;
  for (int i = 0; i < 3; ++i) {
    auto first = std::make_shared<bool>(true);
    calls.push_back(
        client_->StartGenerate({}, options, [&, first](const Response&) {
          if (*first) begun.DecrementCount();
          *first = false;
          return true;
        }));
  }
  begun.Wait();
  CancelToken token = options.cancel;
  token.Cancel();
  for (const auto& call : calls) {
    EXPECT_EQ(call->Wait().code(), absl::StatusCode::kCancelled);
  }
}

TEST_F(ClientStreamTest, LettingGoEndsIt) {
  router_.set_answer([this](grpc::ServerContext* context,
                            const v1::GenerateRequest& request,
                            FakeRouter::Writer* writer) {
    const grpc::Status status =
        FakeRouter::WriteForEver(context, request, writer);
    gone_.Notify();
    return status;
  });
  absl::Notification begun;
  absl::Status ended;
  auto call = client_->StartGenerate(
      {}, {},
      [&](const Response&) {
        if (!begun.HasBeenNotified()) begun.Notify();
        return true;
      },
      [&](const absl::Status& status) { ended = status; });
  begun.WaitForNotification();
  call.reset();
  // Its callbacks are over: they may use what is about to go.
  EXPECT_EQ(ended.code(), absl::StatusCode::kCancelled);
  gone_.WaitForNotification();
}

TEST_F(ClientStreamTest, OutlivesItsClient) {
  router_.set_answer([this](grpc::ServerContext*, const v1::GenerateRequest&,
                            FakeRouter::Writer* writer) {
    go_.WaitForNotification();
    FakeRouter::WriteLast(writer);
    return grpc::Status::OK;
  });
  const auto call =
      client_->StartGenerate({}, {}, [](const Response&) { return true; });
  client_.reset();
  go_.Notify();
  EXPECT_TRUE(call->Wait().ok());
}

TEST_F(ClientStreamTest, PassesOnErrorAndHint) {
  router_.set_answer([](grpc::ServerContext* context,
                        const v1::GenerateRequest&, FakeRouter::Writer*) {
    context->AddTrailingMetadata("retry-after-ms", "40");
    return grpc::Status(grpc::RESOURCE_EXHAUSTED, "queue full");
  });
  const absl::Status status =
      client_->StartGenerate({}, {}, [](const Response&) { return true; })
          ->Wait();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(RetryAfter(status), absl::Milliseconds(40));
}

TEST_F(ClientStreamTest, WhatCannotBeSentEndsAtOnce) {
  GenerateOptions options;
  options.traceparent = "\n";
  absl::Status ended;
  const auto call = client_->StartGenerate(
      {}, options, [](const Response&) { return true; },
      [&](const absl::Status& status) { ended = status; });
  EXPECT_EQ(ended.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(ended.message(), HasSubstr("traceparent"));
  EXPECT_EQ(call->Wait(), ended);
  call->Cancel();
}

}  // namespace
}  // namespace baton::client
