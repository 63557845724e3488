// Clients that end their half of the connection, and read on: what they asked
// for before is answered where it can be.
#include <memory>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "router/http/http_server.h"
#include "tests/router/http/held_handler.h"
#include "tests/router/http/raw_client.h"

namespace baton::router::http {
namespace {

class HttpServerHalfCloseTest : public testing::Test {
 protected:
  void Start(Handler* handler) {
    HttpServer::Options options;
    options.listen = "127.0.0.1:0";
    auto server = HttpServer::Start(options, handler);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }
  const std::string& address() const { return server_->address(); }

  FunctionHandler echo_ = EchoHandler();
  HeldHandler held_;
  std::unique_ptr<HttpServer> server_;
};

TEST_F(HttpServerHalfCloseTest, AllThatWasSentAheadIsAnswered) {
  Start(&echo_);
  RawClient client(address());
  std::string requests;
  for (int i = 0; i < 200; ++i) {
    absl::StrAppend(&requests, "POST /", i,
                    " HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nab");
  }
  ASSERT_TRUE(client.Send(requests + "GET /half HTTP/1.1\r\nHo"));
  client.EndOutput();
  for (int i = 0; i < 200; ++i) {
    ASSERT_EQ(client.Read().body, absl::StrCat("POST /", i, " ? [ab]"));
  }
  EXPECT_TRUE(client.Ended());
}

TEST_F(HttpServerHalfCloseTest, ABadRequestBehindGoodOnesIsRefused) {
  Start(&echo_);
  RawClient client(address());
  ASSERT_TRUE(client.Send(absl::StrCat(kGet, kGet, "GARBAGE\r\n\r\n")));
  client.EndOutput();
  EXPECT_EQ(client.Read().status, 200);
  EXPECT_EQ(client.Read().status, 200);
  EXPECT_EQ(client.Read().status, 400);
  EXPECT_TRUE(client.Ended());
}

TEST_F(HttpServerHalfCloseTest, AGetThatIsAnsweredLaterIsAnswered) {
  Start(&held_);
  RawClient client(address());
  ASSERT_TRUE(client.Send(absl::StrCat(kGet, kGet)));
  client.EndOutput();
  for (const char* body : {"one", "two"}) {
    held_.Next().responder->Send({200, {}, body});
    EXPECT_EQ(client.Read().body, body);
  }
  EXPECT_TRUE(client.Ended());
}

// More than the kernels hold: the rest is sent after the half has ended.
TEST_F(HttpServerHalfCloseTest, ALongAnswerIsSentToItsEnd) {
  Start(&held_);
  RawClient client(address(), /*receive_bytes=*/4096);
  ASSERT_TRUE(client.Send(kGet));
  const std::string body(8 << 20, 'x');
  held_.Next().responder->Send({200, {}, body});
  client.EndOutput();
  const RawAnswer answer = client.Read();
  EXPECT_TRUE(answer.whole);
  EXPECT_EQ(answer.body, body);
  EXPECT_TRUE(client.Ended());
}

TEST_F(HttpServerHalfCloseTest, WorkAndStreamsAreLeft) {
  Start(&held_);
  {
    RawClient client(address());
    ASSERT_TRUE(client.Send(kPost));
    const HeldRequest held = held_.Next();
    const auto gone = Gone(*held.responder);
    client.EndOutput();
    EXPECT_TRUE(gone->WaitForNotificationWithTimeout(kSoon));
    EXPECT_TRUE(client.Ended());
  }
  RawClient client(address());
  ASSERT_TRUE(client.Send(kGet));
  const HeldRequest held = held_.Next();
  const auto gone = Gone(*held.responder);
  held.responder->Start({});
  client.ReadUntil("\r\n\r\n");
  client.EndOutput();
  EXPECT_TRUE(gone->WaitForNotificationWithTimeout(kSoon));
}

// The POST is there only when the half has ended already. Again and again: the
// end of the half and the answer to the GET come at the same time.
TEST_F(HttpServerHalfCloseTest, WorkThatWasSentAheadIsLeftToo) {
  Start(&held_);
  for (int round = 0; round < 200; ++round) {
    SCOPED_TRACE(round);
    RawClient client(address());
    ASSERT_TRUE(client.Send(absl::StrCat(kGet, kPost)));
    client.EndOutput();
    held_.Next().responder->Send({200, {}, "one"});
    ASSERT_EQ(client.Read().body, "one");
    const HeldRequest held = held_.Next();
    const auto gone = Gone(*held.responder);
    EXPECT_TRUE(gone->WaitForNotificationWithTimeout(kSoon));
    EXPECT_TRUE(client.Ended());
  }
}

}  // namespace
}  // namespace baton::router::http
