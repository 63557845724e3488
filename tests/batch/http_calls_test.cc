// The client of a batch, against the router's own server.
#include <algorithm>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "batch/calls.h"
#include "common/clock.h"
#include "router/http/http_server.h"

namespace baton::batch {
namespace {

using router::http::Handler;
using router::http::HttpServer;
using router::http::Request;
using router::http::Responder;
using router::http::Response;
using ::testing::HasSubstr;

constexpr absl::Duration kPatience = absl::Seconds(60);

class AnsweringServer final : public Handler {
 public:
  void Handle(Request request, std::shared_ptr<Responder> responder) override {
    absl::MutexLock lock(&mu_);
    requests_.push_back(request);
    if (request.path == "/v1/responses") {
      held_.push_back(std::move(responder));
      return;
    }
    Response response = {.status = 200,
                         .body = absl::StrCat("{\"of\":", request.body, "}")};
    response.headers.emplace_back("x-request-id", "req-1");
    if (request.path == "/v1/messages") {
      response.status = 429;
      response.headers.emplace_back("retry-after", "3");
      response.headers.emplace_back("retry-after-ms", "2500");
    }
    responder->Send(std::move(response));
  }

  std::vector<Request> requests() {
    absl::MutexLock lock(&mu_);
    return requests_;
  }

 private:
  absl::Mutex mu_;
  std::vector<Request> requests_ ABSL_GUARDED_BY(mu_);
  std::vector<std::shared_ptr<Responder>> held_ ABSL_GUARDED_BY(mu_);
};

class HttpCallsTest : public testing::Test {
 protected:
  HttpCallsTest() { Listen("127.0.0.1:0"); }

  void Listen(const std::string& address) {
    HttpServer::Options options;
    options.listen = address;
    auto server = HttpServer::Start(options, &handler_);
    EXPECT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    options_.url = absl::StrCat("http://", server_->address(), "/v1/");
  }

  void Connect() {
    auto calls = CreateHttpCalls(options_);
    ASSERT_TRUE(calls.ok()) << calls.status();
    calls_ = *std::move(calls);
  }

  // The end of a call that is open.
  CallEnd Await() {
    const absl::Time until = Clock::Monotonic()->Now() + kPatience;
    while (ends_.empty() && Clock::Monotonic()->Now() < until) {
      for (CallEnd& end : calls_->Wait(absl::Milliseconds(100))) {
        ends_.push_back(std::move(end));
      }
    }
    if (ends_.empty()) {
      ADD_FAILURE() << "no end";
      return {};
    }
    CallEnd end = std::move(ends_.front());
    ends_.pop_front();
    return end;
  }

  static BatchRequest To(const std::string& url) {
    return {.line = 1, .custom_id = "a", .url = url, .body = "{\"x\":1}"};
  }

  AnsweringServer handler_;
  std::unique_ptr<HttpServer> server_;
  HttpCallsOptions options_;
  std::unique_ptr<Calls> calls_;
  std::deque<CallEnd> ends_;  // that nobody has asked for yet
};

TEST_F(HttpCallsTest, PostsAsAClientOfTheApi) {
  options_.api_key = "secret";
  options_.priority = -7;
  Connect();
  calls_->Start(5, To("/v1/completions"));
  const CallEnd end = Await();
  EXPECT_EQ(end.call, 5);
  EXPECT_EQ(end.kind, CallEndKind::kAnswered);
  EXPECT_EQ(end.answer.status, 200);
  EXPECT_EQ(end.answer.request_id, "req-1");
  EXPECT_EQ(end.answer.body, "{\"of\":{\"x\":1}}");
  EXPECT_FALSE(end.retry_after.has_value());
  const Request request = handler_.requests().at(0);
  EXPECT_EQ(request.path, "/v1/completions");
  EXPECT_EQ(request.Header("authorization"), "Bearer secret");
  EXPECT_EQ(request.Header("content-type"), "application/json");
  EXPECT_EQ(request.Header("x-baton-class"), "batch");
  EXPECT_EQ(request.Header("x-baton-priority"), "-7");
}

TEST_F(HttpCallsTest, LargeBodiesGoAtOnce) {
  Connect();
  BatchRequest request = To("/v1/completions");
  request.body = absl::StrCat("\"", std::string(4 << 20, 'x'), "\"");
  calls_->Start(1, request);
  const CallEnd end = Await();
  EXPECT_EQ(end.answer.status, 200);
  EXPECT_EQ(end.answer.body, absl::StrCat("{\"of\":", request.body, "}"));
  EXPECT_EQ(handler_.requests().at(0).Header("expect"), "");
}

TEST_F(HttpCallsTest, RefusalsSayWhenToComeBack) {
  Connect();
  calls_->Start(1, To("/v1/messages"));
  const CallEnd end = Await();
  EXPECT_EQ(end.answer.status, 429);
  EXPECT_EQ(end.retry_after, absl::Milliseconds(2500));
}

TEST_F(HttpCallsTest, ManyAreOpenAtOnce) {
  options_.max_connections = 8;
  Connect();
  for (int i = 0; i < 8; ++i) calls_->Start(i, To("/v1/completions"));
  std::vector<int64_t> ended;
  while (ended.size() < 8) ended.push_back(Await().call);
  std::sort(ended.begin(), ended.end());
  EXPECT_EQ(ended, (std::vector<int64_t>{0, 1, 2, 3, 4, 5, 6, 7}));
}

TEST_F(HttpCallsTest, OneThatTakesTooLongIsGivenUp) {
  options_.timeout = absl::Milliseconds(300);
  Connect();
  calls_->Start(1, To("/v1/responses"));
  const CallEnd end = Await();
  EXPECT_EQ(end.kind, CallEndKind::kGivenUp);
  EXPECT_EQ(end.answer.status, 0);
  EXPECT_EQ(end.answer.error_code, "timeout");
}

TEST_F(HttpCallsTest, ACallThatIsOpenGoesWithTheObject) {
  Connect();
  calls_->Start(1, To("/v1/responses"));
  EXPECT_TRUE(calls_->Wait(absl::Milliseconds(50)).empty());
  calls_.reset();
}

TEST_F(HttpCallsTest, WhenTheServerGoesACallBroke) {
  Connect();
  calls_->Start(1, To("/v1/responses"));
  const absl::Time until = Clock::Monotonic()->Now() + kPatience;
  while (handler_.requests().empty() && Clock::Monotonic()->Now() < until) {
    EXPECT_TRUE(calls_->Wait(absl::Milliseconds(5)).empty());
  }
  const std::string address = server_->address();
  server_.reset();
  CallEnd end = Await();
  EXPECT_EQ(end.kind, CallEndKind::kBroke);
  EXPECT_THAT(end.answer.error, ::testing::Not(::testing::IsEmpty()));
  // Nor is there anyone to connect to, until there is again.
  calls_->Start(2, To("/v1/completions"));
  EXPECT_EQ(Await().kind, CallEndKind::kBroke);
  Listen(address);
  calls_->Start(3, To("/v1/completions"));
  EXPECT_EQ(Await().answer.status, 200);
}

TEST_F(HttpCallsTest, UrlsThatAreNoneAreRefused) {
  const auto refusal = [](const std::string& url) {
    const auto calls = CreateHttpCalls({.url = url});
    EXPECT_EQ(calls.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(calls.status().message());
  };
  EXPECT_THAT(refusal("localhost:8000"), HasSubstr("does not begin with http"));
  EXPECT_THAT(refusal("http://"), HasSubstr("is no URL"));
  EXPECT_THAT(refusal("http://host/v1?key=1"), HasSubstr("has a query"));
  EXPECT_THAT(std::string(CreateHttpCalls(
                              {.url = "http://host", .api_key = "a\r\nb: c"})
                              .status()
                              .message()),
              HasSubstr("control character"));
}

}  // namespace
}  // namespace baton::batch
