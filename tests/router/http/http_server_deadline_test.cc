// Clients that take their time, and the end of the server. Deadlines are short
// here, but for those that a test has to be faster than; each test waits for
// what the server does, never for a time.
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/synchronization/notification.h"
#include "common/clock.h"
#include "common/metrics/metrics.h"
#include "router/http/http_server.h"
#include "tests/router/http/held_handler.h"
#include "tests/router/http/raw_client.h"

namespace baton::router::http {
namespace {

class HttpServerDeadlineTest : public testing::Test {
 protected:
  void Start(HttpServer::Options options) {
    options.listen = "127.0.0.1:0";
    options.metrics = &metrics_;
    auto server = HttpServer::Start(options, &held_);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }
  const std::string& address() const { return server_->address(); }
  double Dropped(const std::string& reason) {
    return metrics_
        .Counter("baton_http_connections_dropped_total",
                 "HTTP connections that the server refused or ended",
                 {{"reason", reason}})
        ->Value();
  }

  metrics::Metrics metrics_{metrics::Labels{}};
  HeldHandler held_;
  std::unique_ptr<HttpServer> server_;
};

TEST_F(HttpServerDeadlineTest, SilentClientsAreDropped) {
  HttpServer::Options options;
  options.header_deadline = absl::Milliseconds(50);
  Start(options);
  RawClient client(address());
  EXPECT_TRUE(client.Ended());
  EXPECT_EQ(Dropped("header_deadline"), 1);
}

TEST_F(HttpServerDeadlineTest, SlowHeadersEndAlthoughBytesCome) {
  HttpServer::Options options;
  options.header_deadline = absl::Milliseconds(200);
  Start(options);
  RawClient client(address());
  const absl::Time began = Clock::Monotonic()->Now();
  std::thread trickle([&] {
    client.Send("GET / HTTP/1.1\r\nX: ");
    while (client.Send("y")) std::this_thread::yield();
  });
  // The answer may be lost to bytes that were sent after it.
  const std::string text = client.ReadToEnd();
  if (!text.empty()) {
    EXPECT_THAT(text, testing::StartsWith("HTTP/1.1 4"));
  }
  EXPECT_LT(Clock::Monotonic()->Now() - began, kSoon);
  trickle.join();
}

TEST_F(HttpServerDeadlineTest, HalfAHeaderGets408) {
  HttpServer::Options options;
  // From the connection on: half a header is there before.
  options.header_deadline = absl::Seconds(1);
  Start(options);
  RawClient client(address());
  ASSERT_TRUE(client.Send("GET / HTTP/1.1\r\nHos"));
  EXPECT_EQ(client.Read().status, 408);
  EXPECT_TRUE(client.Ended());
  EXPECT_EQ(Dropped("header_deadline"), 1);
}

TEST_F(HttpServerDeadlineTest, HalfABodyGets408) {
  HttpServer::Options options;
  options.body_deadline = absl::Milliseconds(50);
  Start(options);
  RawClient client(address());
  ASSERT_TRUE(client.Send(
      "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nabc"));
  EXPECT_EQ(client.Read().status, 408);
  EXPECT_TRUE(client.Ended());
  EXPECT_EQ(Dropped("body_deadline"), 1);
}

TEST_F(HttpServerDeadlineTest, IdleConnectionsAreClosed) {
  HttpServer::Options options;
  options.idle_deadline = absl::Milliseconds(50);
  Start(options);
  RawClient client(address());
  ASSERT_TRUE(client.Send(kGet));
  held_.Next().responder->Send({200, {}, "ok"});
  EXPECT_EQ(client.Read().body, "ok");
  EXPECT_TRUE(client.Ended());
}

TEST_F(HttpServerDeadlineTest, SilentStreamsAreKeptAlive) {
  HttpServer::Options options;
  options.quiet_interval = absl::Milliseconds(5);
  Start(options);
  RawClient client(address());
  ASSERT_TRUE(client.Send(kPost));
  HeldRequest silent = held_.Next();
  silent.responder->KeepAlive({}, "ping ");
  // The head, and several of them, before anything else.
  std::string seen = client.ReadUntil("ping ");
  EXPECT_THAT(seen, testing::StartsWith("HTTP/1.1 200 OK\r\n"));
  for (int i = 0; i < 3; ++i) client.ReadUntil("ping ");
  silent.responder->Start({200, {}, "now"});
  client.ReadUntil("now");
  client.ReadUntil("ping ");
  silent.responder->End();
  client.ReadUntil("0\r\n\r\n");
  // The next answer of the connection is another one, and not to be kept alive.
  ASSERT_TRUE(client.Send(kPost));
  HeldRequest plain = held_.Next();
  plain.responder->Send({200, {}, "ok"});
  EXPECT_EQ(client.Read().body, "ok");
}

TEST_F(HttpServerDeadlineTest, EmptyLinesBeginNoRequest) {
  HttpServer::Options options;
  options.header_deadline = absl::Seconds(1);
  options.idle_deadline = absl::Seconds(2);
  Start(options);
  RawClient client(address());
  for (const char* lines : {"\r\n", "\r", "\r\n\r\n\r"}) {
    ASSERT_TRUE(client.Send(kGet));
    held_.Next().responder->Send({200, {}, "ok"});
    EXPECT_EQ(client.Read().body, "ok");
    ASSERT_TRUE(client.Send(lines));
    // The rest of its last line.
    if (std::string(lines).back() == '\r') {
      ASSERT_TRUE(client.Send("\n"));
    }
  }
  ASSERT_TRUE(client.Send("\r\n"));
  // The end of an idle connection, without a word about headers.
  EXPECT_EQ(client.ReadToEnd(), "");
  EXPECT_EQ(Dropped("header_deadline"), 0);
}

TEST_F(HttpServerDeadlineTest, AnEmptyLineDoesNotKeepAConnectionFromClosing) {
  Start({});
  RawClient client(address());
  ASSERT_TRUE(client.Send(kGet));
  held_.Next().responder->Send({200, {}, "ok"});
  EXPECT_EQ(client.Read().body, "ok");
  ASSERT_TRUE(client.Send("\r\n"));
  // Asks on another connection: the empty line is read before.
  RawClient other(address());
  ASSERT_TRUE(other.Send(kGet));
  held_.Next().responder->Send({200, {}, "ok"});
  EXPECT_EQ(other.Read().body, "ok");
  const absl::Time began = Clock::Monotonic()->Now();
  server_->Drain(kSoon);
  EXPECT_LT(Clock::Monotonic()->Now() - began, kSoon);
  EXPECT_TRUE(client.Ended());
}

TEST_F(HttpServerDeadlineTest, AnAnswerMayTakeLonger) {
  HttpServer::Options options;
  // The whole request is there before.
  options.header_deadline = absl::Seconds(1);
  options.body_deadline = absl::Milliseconds(20);
  options.idle_deadline = absl::Milliseconds(20);
  options.write_deadline = absl::Milliseconds(20);
  Start(options);
  RawClient client(address());
  ASSERT_TRUE(client.Send(kGet));
  const HeldRequest held = held_.Next();
  // All of these have passed when another connection was dropped twice.
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(RawClient(address()).Ended());
  held.responder->Send({200, {}, "late"});
  EXPECT_EQ(client.Read().body, "late");
}

TEST_F(HttpServerDeadlineTest, AStreamThatIsNotReadIsGivenUp) {
  HttpServer::Options options;
  options.write_deadline = absl::Milliseconds(500);
  options.max_pending_bytes = 64 << 20;
  Start(options);
  RawClient client(address(), /*receive_bytes=*/4096);
  ASSERT_TRUE(client.Send(kGet));
  const HeldRequest held = held_.Next();
  const auto gone = Gone(*held.responder);
  held.responder->Start({});
  // More than the kernels hold.
  held.responder->Write(std::string(32 << 20, 'x'));
  EXPECT_TRUE(gone->WaitForNotificationWithTimeout(kSoon));
  EXPECT_FALSE(held.responder->Write("x"));
  client.ReadToEnd();
  EXPECT_EQ(Dropped("write_deadline"), 1);
}

TEST_F(HttpServerDeadlineTest, DrainClosesIdleOnesAndLetsAnswersEnd) {
  Start({});
  RawClient idle(address());
  ASSERT_TRUE(idle.Send(kGet));
  held_.Next().responder->Send({});
  EXPECT_EQ(idle.Read().status, 200);
  RawClient silent(address());
  RawClient streaming(address());
  ASSERT_TRUE(streaming.Send(kGet));
  const HeldRequest stream = held_.Next();
  stream.responder->Start({});
  ASSERT_TRUE(stream.responder->Write("abc"));

  std::thread drain([&] { server_->Drain(kSoon); });
  EXPECT_TRUE(idle.Ended());
  EXPECT_TRUE(silent.Ended());
  EXPECT_TRUE(stream.responder->Write("def"));
  stream.responder->End();
  const RawAnswer answer = streaming.Read();
  EXPECT_TRUE(answer.whole);
  EXPECT_EQ(answer.body, "abcdef");
  EXPECT_TRUE(streaming.Ended());
  streaming.Close();
  const absl::Time began = Clock::Monotonic()->Now();
  drain.join();
  EXPECT_LT(Clock::Monotonic()->Now() - began, kSoon);
}

TEST_F(HttpServerDeadlineTest, DrainCutsWhatIsLeft) {
  Start({});
  RawClient client(address());
  ASSERT_TRUE(client.Send(kGet));
  const HeldRequest held = held_.Next();
  const auto gone = Gone(*held.responder);
  held.responder->Start({});
  ASSERT_TRUE(held.responder->Write("abc"));
  server_->Drain(absl::Milliseconds(20));
  EXPECT_TRUE(gone->HasBeenNotified());
  EXPECT_FALSE(client.Read().whole);
  // Twice does no harm.
  server_->Drain(absl::Milliseconds(20));
}

}  // namespace
}  // namespace baton::router::http
