// Connecting, and calls that wait for their end.
#include "client/client.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/synchronization/notification.h"
#include "tests/client/fake_router.h"

namespace baton::client {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

using Response = v1::GenerateResponse;

bool GoOn(const Response&) { return true; }

class ClientTest : public testing::Test {
 protected:
  std::unique_ptr<Client> Connect(ClientOptions options = {}) {
    options.address = router_.address();
    auto client = Client::Connect(options);
    CHECK(client.ok()) << client.status();
    return *std::move(client);
  }

  absl::Notification gone_;
  FakeRouter router_;  // its answers use the others
};

TEST_F(ClientTest, SaysThatNobodyListens) {
  const std::string address = router_.address();
  router_.Shutdown();
  const absl::Status status = Client::Connect({.address = address}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()),
              StartsWith("cannot connect to " + address));
  EXPECT_THAT(status.message(), HasSubstr("refused"));
}

// Takes connections and says nothing.
TEST(ClientConnectTest, DoesNotWaitForEver) {
  const int listener = socket(AF_INET, SOCK_STREAM, 0);
  ASSERT_GE(listener, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  ASSERT_EQ(bind(listener, generic, size), 0);
  ASSERT_EQ(listen(listener, 4), 0);
  ASSERT_EQ(getsockname(listener, generic, &size), 0);
  ClientOptions options;
  options.address = absl::StrCat("127.0.0.1:", ntohs(address.sin_port));
  options.connect_timeout = absl::Milliseconds(100);
  const absl::Status status = Client::Connect(options).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  close(listener);
}

TEST(ClientConnectTest, RefusesOptionsThatCannotWork) {
  const auto error = [](const ClientOptions& options) {
    return Client::Connect(options).status();
  };
  EXPECT_EQ(error({}).code(), absl::StatusCode::kInvalidArgument);
  const absl::Status key =
      error({.address = "127.0.0.1:1", .api_key = "secret\nand-more"});
  EXPECT_EQ(key.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(key.message(), HasSubstr("api_key"));
  EXPECT_THAT(key.message(), Not(HasSubstr("secret")));
  EXPECT_EQ(error({.address = "127.0.0.1:1", .api_key = std::string(5000, 'a')})
                .code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(
      error({.address = "127.0.0.1:1", .tls_cert_file = "/dev/null"}).message(),
      HasSubstr("tls_key_file"));
  const absl::Status missing =
      error({.address = "127.0.0.1:1", .tls_ca_file = "/nonexistent.pem"});
  EXPECT_EQ(missing.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(missing.message(), HasSubstr("tls_ca_file /nonexistent.pem"));
  const absl::Status empty =
      error({.address = "127.0.0.1:1", .tls_ca_file = "/dev/null"});
  EXPECT_EQ(empty.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(empty.message(), HasSubstr("no PEM file"));
}

TEST_F(ClientTest, StreamsAnAnswer) {
  router_.set_answer([](grpc::ServerContext*, const v1::GenerateRequest&,
                        FakeRouter::Writer* writer) {
    FakeRouter::Write(writer, "there");
    FakeRouter::Write(writer, " was");
    FakeRouter::WriteLast(writer);
    return grpc::Status::OK;
  });
  const auto client = Connect({.api_key = "k-123"});
  v1::GenerateRequest request;
  request.set_text("Once");
  GenerateOptions options;
  options.timeout = absl::Seconds(100);
  options.traceparent =
      "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
  std::vector<std::string> texts;
  v1::FinishReason last = v1::FINISH_REASON_UNSPECIFIED;
  const absl::Status status =
      client->Generate(request, options, [&](const Response& response) {
        texts.push_back(response.text());
        last = response.finish_reason();
        return true;
      });
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_THAT(texts, ElementsAre("there", " was", ""));
  EXPECT_EQ(last, v1::FINISH_REASON_STOP);

  const FakeRouter::Seen seen = router_.last_seen();
  EXPECT_EQ(seen.request.text(), "Once");
  EXPECT_EQ(seen.metadata.at("authorization"), "Bearer k-123");
  EXPECT_EQ(seen.metadata.at("traceparent"), options.traceparent);
  // gRPC says it in about two digits.
  EXPECT_LE(seen.time_left, absl::Seconds(110));
  EXPECT_GT(seen.time_left, absl::Seconds(10));
}

TEST_F(ClientTest, SendsNoHeaderThatWasNotAskedFor) {
  const auto client = Connect();
  ASSERT_TRUE(client->GetModel().ok());
  const FakeRouter::Seen seen = router_.last_seen();
  EXPECT_EQ(seen.metadata.count("authorization"), 0u);
  EXPECT_EQ(seen.metadata.count("traceparent"), 0u);
  EXPECT_LE(seen.time_left, absl::Seconds(11));
}

TEST_F(ClientTest, EveryCallHasTheKey) {
  const auto client = Connect({.api_key = "k"});
  ASSERT_TRUE(client->GetModel().ok());
  EXPECT_EQ(router_.last_seen().metadata.at("authorization"), "Bearer k");
}

TEST_F(ClientTest, FalseEndsTheCall) {
  router_.set_answer([this](grpc::ServerContext* context,
                            const v1::GenerateRequest& request,
                            FakeRouter::Writer* writer) {
    const grpc::Status status =
        FakeRouter::WriteForEver(context, request, writer);
    gone_.Notify();
    return status;
  });
  const auto client = Connect();
  int calls = 0;
  const absl::Status status =
      client->Generate({}, {}, [&](const Response&) { return ++calls < 3; });
  EXPECT_EQ(status, absl::CancelledError("cancelled by the caller"));
  EXPECT_EQ(calls, 3);
  EXPECT_TRUE(gone_.WaitForNotificationWithTimeout(absl::Seconds(60)));
}

TEST_F(ClientTest, ATokenEndsTheCallFromOutside) {
  const auto client = Connect();
  GenerateOptions options;
  CancelToken token = options.cancel;
  std::thread other;
  const absl::Status status =
      client->Generate({}, options, [&](const Response&) {
        if (!other.joinable()) other = std::thread([&] { token.Cancel(); });
        return true;
      });
  if (other.joinable()) other.join();
  EXPECT_EQ(status.code(), absl::StatusCode::kCancelled) << status;
  // It stays used.
  int calls = 0;
  const absl::Status again =
      client->Generate({}, options, [&](const Response&) {
        ++calls;
        return true;
      });
  EXPECT_EQ(again.code(), absl::StatusCode::kCancelled) << again;
  EXPECT_EQ(calls, 0);
}

TEST_F(ClientTest, TheTimeoutEndsTheCall) {
  const auto client = Connect();
  GenerateOptions options;
  options.timeout = absl::Milliseconds(100);
  EXPECT_EQ(client->Generate({}, options, GoOn).code(),
            absl::StatusCode::kDeadlineExceeded);
  options.timeout = -absl::InfiniteDuration();
  EXPECT_EQ(client->Generate({}, options, GoOn).code(),
            absl::StatusCode::kDeadlineExceeded);
}

TEST_F(ClientTest, NoTimeoutIsALongOne) {
  router_.set_answer([](grpc::ServerContext*, const v1::GenerateRequest&,
                        FakeRouter::Writer* writer) {
    FakeRouter::WriteLast(writer);
    return grpc::Status::OK;
  });
  GenerateOptions options;
  options.timeout = absl::InfiniteDuration();
  EXPECT_TRUE(Connect()->Generate({}, options, GoOn).ok());
  EXPECT_GT(router_.last_seen().time_left, absl::Hours(24));
}

TEST_F(ClientTest, PassesOnErrorAndHint) {
  const auto answer_with_hint = [&](const std::string& hint) {
    router_.set_answer([hint](grpc::ServerContext* context,
                              const v1::GenerateRequest&, FakeRouter::Writer*) {
      context->AddTrailingMetadata("retry-after-ms", hint);
      return grpc::Status(grpc::RESOURCE_EXHAUSTED, "queue full");
    });
  };
  answer_with_hint("250");
  const auto client = Connect();
  absl::Status status = client->Generate({}, {}, GoOn);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(status.message(), "queue full");
  EXPECT_EQ(RetryAfter(status), absl::Milliseconds(250));
  answer_with_hint("soon");
  status = client->Generate({}, {}, GoOn);
  EXPECT_EQ(status.message(), "queue full");
  EXPECT_EQ(RetryAfter(status), std::nullopt);
  EXPECT_EQ(RetryAfter(absl::OkStatus()), std::nullopt);
}

TEST_F(ClientTest, AStreamWithoutAnEndIsAnError) {
  router_.set_answer([](grpc::ServerContext*, const v1::GenerateRequest&,
                        FakeRouter::Writer* writer) {
    FakeRouter::Write(writer, "there");
    return grpc::Status::OK;
  });
  const absl::Status status = Connect()->Generate({}, {}, GoOn);
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
}

TEST_F(ClientTest, RefusesATraceparentThatCannotBeSent) {
  GenerateOptions options;
  options.traceparent = "00-\x01";
  const absl::Status status = Connect()->Generate({}, options, GoOn);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("traceparent"));
}

TEST_F(ClientTest, AsksWhatIsServed) {
  const auto client = Connect();
  const auto model = client->GetModel();
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ(model->name(), "fake");
  const auto cluster = client->GetCluster();
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  EXPECT_EQ(cluster->router_name(), "router-of-a-test");
  const auto known = client->Explain("known");
  ASSERT_TRUE(known.ok()) << known.status();
  EXPECT_EQ(known->request_id(), "known");
  EXPECT_EQ(client->Explain("unknown").status(),
            absl::NotFoundError("no such request"));
}

}  // namespace
}  // namespace baton::client
