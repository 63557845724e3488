// What the server asks its handler before it reads a body, and what bodies may
// take of its memory.
#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "router/http/body_budget.h"
#include "router/http/http_server.h"
#include "tests/router/http/held_handler.h"
#include "tests/router/http/raw_client.h"

namespace baton::router::http {
namespace {

// Refuses what is under "/no"; answers the rest with its body.
class CheckingHandler final : public Handler {
 public:
  std::optional<Response> Check(const Request& head) override {
    absl::MutexLock lock(&mu_);
    last_ = head;
    ++checks_;
    if (!absl::StartsWith(head.path, "/no")) return std::nullopt;
    Response refusal;
    refusal.status = 401;
    refusal.headers.emplace_back("www-authenticate", "Bearer");
    refusal.body = "no";
    return refusal;
  }
  void Handle(Request request, std::shared_ptr<Responder> responder) override {
    ++handled_;
    responder->Send({200, {}, request.body});
  }

  Request last() {
    absl::MutexLock lock(&mu_);
    return last_;
  }
  int checks() const { return checks_; }
  int handled() const { return handled_; }

 private:
  absl::Mutex mu_;
  Request last_ ABSL_GUARDED_BY(mu_);
  std::atomic<int> checks_{0};
  std::atomic<int> handled_{0};
};

std::string Post(const std::string& path, size_t length,
                 const std::string& headers = "") {
  return absl::StrCat("POST ", path, " HTTP/1.1\r\nHost: x\r\n", headers,
                      "Content-Length: ", length, "\r\n\r\n");
}

class HttpServerCheckTest : public testing::Test {
 protected:
  void Start(HttpServer::Options options, Handler* handler) {
    options.listen = "127.0.0.1:0";
    auto server = HttpServer::Start(options, handler);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }
  const std::string& address() const { return server_->address(); }

  CheckingHandler handler_;
  HeldHandler held_;
  std::unique_ptr<HttpServer> server_;
};

TEST_F(HttpServerCheckTest, AsksOnceWhateverThePieces) {
  Start({}, &handler_);
  RawClient client(address());
  ASSERT_TRUE(client.Send(Post("/a?b", 5, "X-A: c\r\n") + "hello"));
  EXPECT_EQ(client.Read().body, "hello");
  EXPECT_EQ(handler_.checks(), 1);
  const Request head = handler_.last();
  EXPECT_EQ(head.method, "POST");
  EXPECT_EQ(head.path, "/a");
  EXPECT_EQ(head.query, "b");
  EXPECT_EQ(head.Header("x-a"), "c");
  EXPECT_THAT(head.peer, testing::StartsWith("127.0.0.1:"));
  EXPECT_TRUE(head.loopback);
  for (const char c : Post("/a", 5) + "again") {
    ASSERT_TRUE(client.Send(absl::string_view(&c, 1)));
  }
  EXPECT_EQ(client.Read().body, "again");
  EXPECT_EQ(handler_.checks(), 2);
}

TEST_F(HttpServerCheckTest, ARefusedLargeBodyIsNotWaitedFor) {
  Start({}, &handler_);
  for (const std::string& request :
       {Post("/no", 16 << 20),
        Post("/no", 16 << 20, "Expect: 100-continue\r\n"),
        Post("/no", 5, "Expect: 100-continue\r\n"),
        std::string("POST /no HTTP/1.1\r\nHost: x\r\n"
                    "Transfer-Encoding: chunked\r\n\r\n")}) {
    RawClient client(address());
    ASSERT_TRUE(client.Send(request));
    const RawAnswer answer = client.Read();
    EXPECT_EQ(answer.status, 401) << request;
    EXPECT_EQ(answer.headers.at("connection"), "close");
    EXPECT_EQ(answer.headers.at("www-authenticate"), "Bearer");
    EXPECT_EQ(answer.body, "no");
    EXPECT_TRUE(client.Ended());
  }
  EXPECT_EQ(handler_.handled(), 0);
}

// The answer reaches a client that sends on before it reads.
TEST_F(HttpServerCheckTest, ARefusedBodyThatComesAllTheSame) {
  Start({}, &handler_);
  RawClient client(address());
  ASSERT_TRUE(client.Send(Post("/no", 500000) + std::string(500000, 'x')));
  EXPECT_EQ(client.Read().status, 401);
}

TEST_F(HttpServerCheckTest, ARefusedSmallBodyIsReadAndTheConnectionGoesOn) {
  Start({}, &handler_);
  RawClient client(address());
  for (const bool in_pieces : {false, true}) {
    const std::string head = Post("/no", 5);
    if (in_pieces) {
      ASSERT_TRUE(client.Send(head));
      ASSERT_TRUE(client.Send("hel"));
      ASSERT_TRUE(client.Send("lo"));
    } else {
      ASSERT_TRUE(client.Send(head + "hello"));
    }
    const RawAnswer refused = client.Read();
    EXPECT_EQ(refused.status, 401);
    EXPECT_EQ(refused.headers.count("connection"), 0u);
    ASSERT_TRUE(client.Send(kGet));
    EXPECT_EQ(client.Read().status, 200);
  }
  ASSERT_TRUE(client.Send("HEAD /no HTTP/1.1\r\nHost: x\r\n\r\n"));
  EXPECT_EQ(client.Read(/*head=*/true).status, 401);
  ASSERT_TRUE(client.Send(kGet));
  EXPECT_EQ(client.Read().status, 200);
}

TEST_F(HttpServerCheckTest, BodiesCountUntilTheHandlerLetsGoOfThem) {
  HttpServer::Options options;
  options.max_body_bytes_total = 150;
  options.small_body_bytes = 0;
  Start(options, &held_);
  const std::string request = Post("/", 100) + std::string(100, 'x');
  RawClient first(address());
  ASSERT_TRUE(first.Send(request));
  HeldRequest held = held_.Next();
  ASSERT_NE(held.request.body_share, nullptr);
  RawClient second(address());
  ASSERT_TRUE(second.Send(request));
  EXPECT_EQ(second.Read().status, 503);
  // Its answer alone does not free it.
  held.responder->Send({});
  EXPECT_EQ(first.Read().status, 200);
  RawClient third(address());
  ASSERT_TRUE(third.Send(request));
  EXPECT_EQ(third.Read().status, 503);
  held = {};
  RawClient fourth(address());
  ASSERT_TRUE(fourth.Send(request));
  held_.Next().responder->Send({});
  EXPECT_EQ(fourth.Read().status, 200);
}

TEST_F(HttpServerCheckTest, LargeBodiesDoNotKeepSmallOnesOut) {
  HttpServer::Options options;
  options.max_body_bytes_total = 100;
  options.small_body_bytes = 50;
  Start(options, &held_);
  RawClient large(address());
  ASSERT_TRUE(large.Send(Post("/", 100) + std::string(100, 'x')));
  const HeldRequest held = held_.Next();
  for (int i = 0; i < 3; ++i) {
    RawClient small(address());
    ASSERT_TRUE(small.Send(Post("/", 50) + std::string(50, 'x')));
    const HeldRequest one = held_.Next();
    EXPECT_EQ(one.request.body_share, nullptr);
    one.responder->Send({});
    EXPECT_EQ(small.Read().status, 200);
  }
  RawClient too_large(address());
  ASSERT_TRUE(too_large.Send(Post("/", 51) + std::string(51, 'x')));
  EXPECT_EQ(too_large.Read().status, 503);
}

TEST(BodyBudgetTest, SharesGrowAndAreGivenBack) {
  const auto budget = std::make_shared<BodyBudget>(100);
  {
    BodyShare share(budget);
    EXPECT_TRUE(share.GrowTo(40));
    EXPECT_TRUE(share.GrowTo(40));
    EXPECT_TRUE(share.GrowTo(70));
    EXPECT_EQ(budget->taken(), 70u);
    BodyShare other(budget);
    EXPECT_FALSE(other.GrowTo(31));
    EXPECT_TRUE(other.GrowTo(30));
    EXPECT_FALSE(share.GrowTo(71));
    EXPECT_EQ(budget->taken(), 100u);
  }
  EXPECT_EQ(budget->taken(), 0u);
}

}  // namespace
}  // namespace baton::router::http
