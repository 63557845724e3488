// The generator's HTTP client, against the router's own server.
#include "load_generator/http_target.h"

#include <atomic>
#include <memory>
#include <set>
#include <string>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "router/http/http_server.h"

namespace baton::load_generator {
namespace {

using router::http::Handler;
using router::http::HttpServer;
using router::http::Request;
using router::http::Responder;
using router::http::Response;
using ::testing::HasSubstr;

constexpr char kEvent[] = "data: {\"choices\":[{\"text\":\"a\"}]}\n\n";

// Answers as a server of the API.
class FakeServer final : public Handler {
 public:
  void Handle(Request request, std::shared_ptr<Responder> responder) override {
    {
      absl::MutexLock lock(&mu_);
      last_ = request;
    }
    if (request.path == "/v1/models") {
      responder->Send({.status = 200, .body = models});
      return;
    }
    if (status != 200) {
      responder->Send(
          {.status = status, .body = "{\"error\":{\"message\":\"not now\"}}"});
      return;
    }
    if (silent) {
      absl::MutexLock lock(&mu_);
      held_ = std::move(responder);
      return;
    }
    responder->Start({.status = 200, .body = kEvent});
    responder->Write(absl::StrCat(kEvent, kEvent));
    responder->Write(
        "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":2,"
        "\"completion_tokens\":3}}\n\ndata: [DONE]\n\n");
    responder->End();
  }

  Request last() {
    absl::MutexLock lock(&mu_);
    return last_;
  }

  std::atomic<int> status{200};
  std::atomic<bool> silent{false};
  std::string models = "{\"data\":[{\"id\":\"first\"},{\"id\":\"second\"}]}";

 private:
  absl::Mutex mu_;
  Request last_;
  std::shared_ptr<Responder> held_;
};

class Listener final : public TargetListener {
 public:
  void OnTokens(absl::Time) override { ++events_; }
  void OnEnd(absl::Time, const TargetEnd& end) override {
    end_ = end;
    ended_.Notify();
  }
  // How it ended.
  TargetEnd Await() {
    EXPECT_TRUE(ended_.WaitForNotificationWithTimeout(absl::Seconds(60)));
    return end_;
  }
  int events() const { return events_; }

 private:
  std::atomic<int> events_{0};
  TargetEnd end_;
  absl::Notification ended_;
};

class HttpTargetTest : public testing::Test {
 protected:
  HttpTargetTest() {
    HttpServer::Options options;
    options.listen = "127.0.0.1:0";
    auto server = HttpServer::Start(options, &handler_);
    EXPECT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    url_ = absl::StrCat("http://", server_->address(), "/v1/");
  }

  std::unique_ptr<Target> Connect() {
    auto target = CreateHttpTarget({.url = url_, .model = "m", .api_key = "k"});
    EXPECT_TRUE(target.ok()) << target.status();
    return *std::move(target);
  }

  static TargetRequest Question(absl::Duration timeout = absl::Seconds(60)) {
    return {.tokens = {5, 6}, .output_tokens = 3, .timeout = timeout};
  }

  FakeServer handler_;
  std::unique_ptr<HttpServer> server_;
  std::string url_;
};

TEST_F(HttpTargetTest, StreamsAnswersOnConnectionsThatAreKept) {
  const auto target = Connect();
  for (int i = 0; i < 3; ++i) {
    const auto listener = std::make_shared<Listener>();
    target->Send(Question(), listener);
    const TargetEnd end = listener->Await();
    EXPECT_EQ(end.kind, OutcomeKind::kFinished) << end.error;
    EXPECT_EQ(end.output_tokens, 3);
    EXPECT_GE(listener->events(), 1);  // the network may join some
  }
  const Request last = handler_.last();
  EXPECT_EQ(last.path, "/v1/completions");
  EXPECT_EQ(last.Header("authorization"), "Bearer k");
  EXPECT_THAT(last.body, HasSubstr("\"prompt\":[5,6]"));
}

TEST_F(HttpTargetTest, AServerThatCameBackIsReached) {
  const auto target = Connect();
  const auto before = std::make_shared<Listener>();
  target->Send(Question(), before);
  EXPECT_EQ(before->Await().kind, OutcomeKind::kFinished);
  // The connection that was kept is gone with it.
  HttpServer::Options options;
  options.listen = server_->address();
  server_.reset();
  auto server = HttpServer::Start(options, &handler_);
  ASSERT_TRUE(server.ok()) << server.status();
  server_ = *std::move(server);
  const auto after = std::make_shared<Listener>();
  target->Send(Question(), after);
  const TargetEnd end = after->Await();
  EXPECT_EQ(end.kind, OutcomeKind::kFinished) << end.error;
}

TEST_F(HttpTargetTest, ErrorsAreOutcomes) {
  const auto target = Connect();
  handler_.status = 429;
  auto listener = std::make_shared<Listener>();
  target->Send(Question(), listener);
  EXPECT_EQ(listener->Await().kind, OutcomeKind::kRejected);
  EXPECT_EQ(listener->Await().error, "HTTP 429: not now");
  handler_.status = 200;
  handler_.silent = true;
  listener = std::make_shared<Listener>();
  target->Send(Question(absl::Milliseconds(20)), listener);
  EXPECT_EQ(listener->Await().kind, OutcomeKind::kTimedOut);
}

TEST_F(HttpTargetTest, WhatIsOpenEndsWithTheTarget) {
  auto target = Connect();
  handler_.silent = true;
  const auto listener = std::make_shared<Listener>();
  target->Send(Question(), listener);
  target.reset();
  EXPECT_EQ(listener->Await().kind, OutcomeKind::kFailed);
}

TEST_F(HttpTargetTest, NobodyThereIsAFailure) {
  const std::string url = url_;
  server_.reset();
  auto target = CreateHttpTarget({.url = url, .model = "m"});
  ASSERT_TRUE(target.ok());
  const auto listener = std::make_shared<Listener>();
  (*target)->Send(Question(), listener);
  const TargetEnd end = listener->Await();
  EXPECT_EQ(end.kind, OutcomeKind::kFailed);
  EXPECT_THAT(end.error, HasSubstr("cannot connect"));
  EXPECT_EQ(FirstModel(url, "", absl::Seconds(20)).status().code(),
            absl::StatusCode::kUnavailable);
}

TEST_F(HttpTargetTest, AsksForTheModel) {
  const auto model = FirstModel(url_, "", absl::Seconds(60));
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ(*model, "first");
  handler_.models = "{\"data\":[]}";
  EXPECT_EQ(FirstModel(url_, "", absl::Seconds(60)).status().code(),
            absl::StatusCode::kNotFound);
}

TEST(HttpTargetUrlTest, BadUrlsAreRefused) {
  for (const char* url :
       {"", "127.0.0.1:80", "https://a", "http://", "http://:80"}) {
    EXPECT_EQ(CreateHttpTarget({.url = url}).status().code(),
              absl::StatusCode::kInvalidArgument)
        << url;
  }
}

}  // namespace
}  // namespace baton::load_generator
