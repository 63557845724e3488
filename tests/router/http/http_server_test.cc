// Whole answers, over bare sockets: what clients send in one way or another,
// and what they must not.
#include "router/http/http_server.h"

#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "common/clock.h"
#include "common/metrics/metrics.h"
#include "tests/router/http/held_handler.h"
#include "tests/router/http/raw_client.h"

namespace baton::router::http {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

constexpr char kGetWithQuery[] = "GET /a?b HTTP/1.1\r\nHost: x\r\n\r\n";

class HttpServerTest : public testing::Test {
 protected:
  void Start(HttpServer::Options options = {}) { Start(options, &echo_); }
  void Start(HttpServer::Options options, Handler* handler) {
    if (options.listen == HttpServer::Options().listen) {
      options.listen = "127.0.0.1:0";
    }
    options.metrics = &metrics_;
    auto server = HttpServer::Start(options, handler);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }
  const std::string& address() const { return server_->address(); }

  metrics::Metrics metrics_{metrics::Labels{}};
  FunctionHandler echo_ = EchoHandler();
  HeldHandler held_;
  std::unique_ptr<Handler> handler_;  // what a test brings
  absl::Mutex mu_;
  std::set<std::thread::id> seen_ ABSL_GUARDED_BY(mu_);
  std::unique_ptr<HttpServer> server_;  // uses the others to its end
};

TEST_F(HttpServerTest, AnswersOneRequestAfterTheOther) {
  Start();
  RawClient client(address());
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(client.Send(kGetWithQuery));
    const RawAnswer answer = client.Read();
    EXPECT_EQ(answer.status, 200);
    EXPECT_TRUE(answer.whole);
    EXPECT_EQ(answer.body, "GET /a ?b []");
    EXPECT_EQ(answer.headers.at("content-type"), "text/plain");
    EXPECT_EQ(answer.headers.count("connection"), 0u);
    EXPECT_EQ(answer.headers.count("date"), 1u);
  }
}

TEST_F(HttpServerTest, TellsTheHandlerWhoAsksAndWhen) {
  Start({}, &held_);
  RawClient client(address());
  const absl::Time before = Clock::Monotonic()->Now();
  ASSERT_TRUE(client.Send(
      "POST /x HTTP/1.1\r\nHost: x\r\nContent-Type: T\r\nContent-Length: 3\r\n"
      "\r\nabc"));
  const HeldRequest held = held_.Next();
  EXPECT_THAT(held.request.peer, StartsWith("127.0.0.1:"));
  EXPECT_GE(held.request.received_at, before);
  EXPECT_LE(held.request.received_at, Clock::Monotonic()->Now());
  EXPECT_EQ(held.request.Header("content-type"), "T");
  EXPECT_EQ(held.request.body, "abc");
  held.responder->Send({201, {}, "made"});
  const RawAnswer answer = client.Read();
  EXPECT_EQ(answer.status, 201);
  EXPECT_EQ(answer.body, "made");
}

TEST_F(HttpServerTest, AnswersPipelinedRequestsInOrder) {
  Start();
  RawClient client(address());
  std::string requests;
  for (int i = 0; i < 100; ++i) {
    absl::StrAppend(&requests, "POST /", i,
                    " HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nab");
  }
  ASSERT_TRUE(client.Send(requests));
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(client.Read().body, absl::StrCat("POST /", i, " ? [ab]"));
  }
}

TEST_F(HttpServerTest, ReadsRequestsByteByByte) {
  Start();
  RawClient client(address());
  const std::string text =
      "\r\nPOST /a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
      "3\r\nabc\r\n1\r\nd\r\n0\r\n\r\n";
  for (const char c : text) {
    ASSERT_TRUE(client.Send(absl::string_view(&c, 1)));
  }
  EXPECT_EQ(client.Read().body, "POST /a ? [abcd]");
}

TEST_F(HttpServerTest, TakesLargeBodiesAndGivesLargeAnswers) {
  Start();
  const std::string body(5 << 20, 'x');
  for (const bool chunked : {false, true}) {
    RawClient client(address());
    std::thread sender([&] {
      std::string text = "POST /a HTTP/1.1\r\nHost: x\r\n";
      if (chunked) {
        text += "Transfer-Encoding: chunked\r\n\r\n";
        for (size_t i = 0; i < body.size(); i += 1 << 20) {
          absl::StrAppend(&text, "100000\r\n", body.substr(i, 1 << 20), "\r\n");
        }
        text += "0\r\n\r\n";
      } else {
        absl::StrAppend(&text, "Content-Length: ", body.size(), "\r\n\r\n",
                        body);
      }
      EXPECT_TRUE(client.Send(text));
    });
    const RawAnswer answer = client.Read();
    sender.join();
    EXPECT_TRUE(answer.whole);
    EXPECT_EQ(answer.body, "POST /a ? [" + body + "]");
  }
}

TEST_F(HttpServerTest, HeadHasNoBody) {
  Start();
  RawClient client(address());
  ASSERT_TRUE(client.Send("HEAD /a HTTP/1.1\r\nHost: x\r\n\r\n"));
  const RawAnswer answer = client.Read(/*head=*/true);
  EXPECT_EQ(answer.headers.at("content-length"), "12");
  ASSERT_TRUE(client.Send(kGetWithQuery));
  EXPECT_EQ(client.Read().body, "GET /a ?b []");
}

TEST_F(HttpServerTest, ClosesWhenTheClientWantsIt) {
  Start();
  RawClient client(address());
  ASSERT_TRUE(
      client.Send("GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"));
  const RawAnswer answer = client.Read();
  EXPECT_EQ(answer.headers.at("connection"), "close");
  EXPECT_TRUE(answer.whole);
  EXPECT_TRUE(client.Ended());
}

TEST_F(HttpServerTest, ServesHttp10) {
  Start();
  RawClient once(address());
  ASSERT_TRUE(once.Send("GET / HTTP/1.0\r\n\r\n"));
  EXPECT_EQ(once.Read().body, "GET / ? []");
  EXPECT_TRUE(once.Ended());

  RawClient again(address());
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(again.Send("GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"));
    const RawAnswer answer = again.Read();
    EXPECT_EQ(answer.headers.at("connection"), "keep-alive");
    EXPECT_EQ(answer.body, "GET / ? []");
  }
}

TEST_F(HttpServerTest, AnswersAClientThatEndedItsHalf) {
  Start();
  RawClient client(address());
  ASSERT_TRUE(client.Send(kGetWithQuery));
  client.EndOutput();
  EXPECT_EQ(client.Read().body, "GET /a ?b []");
  EXPECT_TRUE(client.Ended());
}

TEST_F(HttpServerTest, SaysContinueWhenAsked) {
  Start();
  RawClient client(address());
  ASSERT_TRUE(
      client.Send("POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n"
                  "Expect: 100-continue\r\n\r\n"));
  EXPECT_EQ(client.ReadUntil("\r\n\r\n"), "HTTP/1.1 100 Continue\r\n\r\n");
  ASSERT_TRUE(client.Send("abc"));
  EXPECT_EQ(client.Read().body, "POST /a ? [abc]");
}

TEST_F(HttpServerTest, RefusesBadRequestsAndCloses) {
  Start();
  const std::vector<std::pair<std::string, int>> bad = {
      {"GARBAGE\r\n\r\n", 400},
      {"GET / HTTP/3.0\r\nHost: x\r\n\r\n", 505},
      {"GET / HTTP/1.1\r\n\r\n", 400},
      {"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n"
       "Transfer-Encoding: chunked\r\n\r\n",
       400},
      {"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip\r\n\r\n", 501},
      {"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz",
       400},
  };
  for (const auto& [text, status] : bad) {
    RawClient client(address());
    ASSERT_TRUE(client.Send(text + "\r\n\r\n"));
    const RawAnswer answer = client.Read();
    EXPECT_EQ(answer.status, status) << text;
    EXPECT_EQ(answer.headers.at("connection"), "close");
    EXPECT_EQ(answer.headers.at("content-type"), "application/json");
    EXPECT_THAT(answer.body, StartsWith("{\"error\":{\"message\":\""));
    if (status < 500) {
      EXPECT_THAT(answer.body,
                  HasSubstr("\",\"type\":\"invalid_request_error\","
                            "\"param\":null,\"code\":null}}"));
    }
    EXPECT_TRUE(client.Ended());
  }
}

TEST_F(HttpServerTest, ABadRequestBehindAGoodOne) {
  Start();
  RawClient client(address());
  ASSERT_TRUE(client.Send(absl::StrCat(kGetWithQuery, "GARBAGE\r\n\r\n")));
  EXPECT_EQ(client.Read().status, 200);
  EXPECT_EQ(client.Read().status, 400);
  EXPECT_TRUE(client.Ended());
}

TEST_F(HttpServerTest, RefusesWhatIsTooLarge) {
  HttpServer::Options options;
  options.max_header_bytes = 1000;
  options.max_body_bytes = 1000;
  Start(options);
  RawClient header(address());
  ASSERT_TRUE(header.Send("GET / HTTP/1.1\r\nHost: x\r\nA: " +
                          std::string(2000, 'x') + "\r\n\r\n"));
  EXPECT_EQ(header.Read().status, 431);
  EXPECT_TRUE(header.Ended());
  // The client gets the answer although it goes on to send.
  RawClient body(address());
  ASSERT_TRUE(
      body.Send("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 500000\r\n\r\n" +
                std::string(500000, 'x')));
  EXPECT_EQ(body.Read().status, 413);
  // No "100 Continue" comes first.
  RawClient expecting(address());
  ASSERT_TRUE(
      expecting.Send("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5000\r\n"
                     "Expect: 100-continue\r\n\r\n"));
  EXPECT_EQ(expecting.Read().status, 413);
}

TEST_F(HttpServerTest, BoundsTheBodiesOfAllConnections) {
  HttpServer::Options options;
  options.max_body_bytes_total = 150;
  options.small_body_bytes = 0;
  Start(options);
  const std::string begin =
      "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 101\r\n";
  RawClient first(address());
  ASSERT_TRUE(first.Send(begin + "Expect: 100-continue\r\n\r\n"));
  first.ReadUntil("\r\n\r\n");
  ASSERT_TRUE(first.Send(std::string(100, 'x')));
  // Both are on one io thread, so the first one's bytes are counted before.
  RawClient second(address());
  ASSERT_TRUE(second.Send(begin + "\r\n" + std::string(100, 'x')));
  EXPECT_EQ(second.Read().status, 503);
  ASSERT_TRUE(first.Send("x"));
  EXPECT_EQ(first.Read().status, 200);
  RawClient third(address());
  ASSERT_TRUE(third.Send(begin + "\r\n" + std::string(101, 'x')));
  EXPECT_EQ(third.Read().status, 200);
}

TEST_F(HttpServerTest, TurnsAwayTooManyConnections) {
  HttpServer::Options options;
  options.max_connections = 2;
  Start(options);
  RawClient one(address());
  auto two = std::make_unique<RawClient>(address());
  ASSERT_TRUE(one.Send(kGetWithQuery));
  ASSERT_TRUE(two->Send(kGetWithQuery));
  EXPECT_EQ(one.Read().status, 200);
  EXPECT_EQ(two->Read().status, 200);
  RawClient three(address());
  const RawAnswer refused = three.Read();
  EXPECT_EQ(refused.status, 503);
  EXPECT_EQ(refused.headers.at("retry-after"), "1");
  EXPECT_TRUE(three.Ended());
  // A place that is free again is taken again.
  two->EndOutput();
  EXPECT_TRUE(two->Ended());
  RawClient four(address());
  ASSERT_TRUE(four.Send(kGetWithQuery));
  EXPECT_EQ(four.Read().status, 200);
}

TEST_F(HttpServerTest, AHandlerThatLetsGoGivesAnError) {
  handler_ = std::make_unique<FunctionHandler>(
      [](Request, std::shared_ptr<Responder>) {});
  Start({}, handler_.get());
  RawClient client(address());
  ASSERT_TRUE(client.Send(kGetWithQuery));
  const RawAnswer answer = client.Read();
  EXPECT_EQ(answer.status, 500);
  EXPECT_THAT(answer.body, HasSubstr("\"server_error\""));
}

TEST_F(HttpServerTest, SeveralThreadsServe) {
  HttpServer::Options options;
  options.threads = 3;
  handler_ = std::make_unique<FunctionHandler>(
      [this](Request, std::shared_ptr<Responder> responder) {
        {
          absl::MutexLock lock(&mu_);
          seen_.insert(std::this_thread::get_id());
        }
        responder->Send({});
      });
  Start(options, handler_.get());
  std::vector<std::unique_ptr<RawClient>> clients;
  for (int i = 0; i < 6; ++i) {
    clients.push_back(std::make_unique<RawClient>(address()));
    ASSERT_TRUE(clients.back()->Send(kGetWithQuery));
    EXPECT_EQ(clients.back()->Read().status, 200);
  }
  absl::MutexLock lock(&mu_);
  EXPECT_EQ(seen_.size(), 3u);
}

TEST_F(HttpServerTest, ListensOnIpv6AndNames) {
  HttpServer::Options options;
  options.listen = "localhost:0";
  Start(options);
  EXPECT_THAT(address(), StartsWith("127.0.0.1:"));
  options.listen = "[::1]:0";
  auto v6 = HttpServer::Start(options, &echo_);
  if (!v6.ok()) GTEST_SKIP() << "no IPv6 here: " << v6.status();
  EXPECT_THAT((*v6)->address(), StartsWith("[::1]:"));
  RawClient client((*v6)->address());
  ASSERT_TRUE(client.Send(kGetWithQuery));
  EXPECT_EQ(client.Read().status, 200);
}

TEST_F(HttpServerTest, SaysWhatIsWrongWithItsOptions) {
  const auto message = [&](const HttpServer::Options& options) {
    return std::string(HttpServer::Start(options, &echo_).status().message());
  };
  HttpServer::Options options;
  for (const std::string listen :
       {"", "nonsense", "127.0.0.1", "127.0.0.1:99999", "::1:80", ":80",
        "[::1]", "[]:80"}) {
    options.listen = listen;
    EXPECT_THAT(message(options), HasSubstr("\"" + listen + "\""));
  }
  options = {};
  options.listen = "127.0.0.1:0";
  options.threads = 0;
  EXPECT_THAT(message(options), HasSubstr("threads"));
  options.threads = 1;
  options.write_deadline = absl::ZeroDuration();
  EXPECT_THAT(message(options), HasSubstr("write_deadline"));
  Start();
  options = {};
  options.listen = address();
  EXPECT_THAT(message(options), HasSubstr(address()));
}

TEST_F(HttpServerTest, Counts) {
  Start();
  prometheus::Gauge* const open = metrics_.Gauge(
      "baton_http_connections", "HTTP connections that are open");
  {
    RawClient client(address());
    ASSERT_TRUE(client.Send(kGetWithQuery));
    EXPECT_EQ(client.Read().status, 200);
    EXPECT_EQ(open->Value(), 1);
    ASSERT_TRUE(client.Send("GARBAGE\r\n\r\n"));
    EXPECT_EQ(client.Read().status, 400);
  }
  server_->Drain(absl::Seconds(20));
  EXPECT_EQ(open->Value(), 0);
  for (const char* code : {"200", "400"}) {
    EXPECT_EQ(
        metrics_
            .Counter("baton_http_responses_total",
                     "HTTP answers that began, by status", {{"code", code}})
            ->Value(),
        1)
        << code;
  }
}

}  // namespace
}  // namespace baton::router::http
