// Streamed answers: what is written arrives, who leaves is noticed, and who
// does not read is no trouble to the others.
#include <sys/socket.h>

#include <atomic>
#include <cerrno>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "common/metrics/metrics.h"
#include "router/http/http_server.h"
#include "tests/router/http/held_handler.h"
#include "tests/router/http/raw_client.h"

namespace baton::router::http {
namespace {

class HttpServerStreamTest : public testing::Test {
 protected:
  void Start(HttpServer::Options options = {}) {
    options.listen = "127.0.0.1:0";
    options.metrics = &metrics_;
    auto server = HttpServer::Start(options, &held_);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }
  const std::string& address() const { return server_->address(); }

  // Asks, and begins the answer.
  std::shared_ptr<Responder> Begin(RawClient* client,
                                   const std::string& request = kGet) {
    EXPECT_TRUE(client->Send(request));
    std::shared_ptr<Responder> responder = held_.Next().responder;
    responder->Start({200, {{"Content-Type", "text/event-stream"}}, ""});
    return responder;
  }

  metrics::Metrics metrics_{metrics::Labels{}};
  HeldHandler held_;
  std::unique_ptr<HttpServer> server_;  // uses the others to its end
};

TEST_F(HttpServerStreamTest, EachPieceArrivesWhenItIsWritten) {
  Start();
  RawClient client(address());
  const auto responder = Begin(&client);
  const std::string head = client.ReadUntil("\r\n\r\n");
  EXPECT_THAT(head, testing::HasSubstr("Transfer-Encoding: chunked"));
  for (int i = 0; i < 100; ++i) {
    const std::string piece = absl::StrCat("data: ", i, "\n\n");
    ASSERT_TRUE(responder->Write(piece));
    EXPECT_EQ(client.ReadUntil("\n\n\r\n"),
              absl::StrCat(absl::Hex(piece.size()), "\r\n", piece, "\r\n"));
  }
  responder->End();
  EXPECT_EQ(client.ReadUntil("\r\n\r\n"), "0\r\n\r\n");
  // The connection goes on.
  ASSERT_TRUE(client.Send(kGet));
  held_.Next().responder->Send({200, {}, "next"});
  EXPECT_EQ(client.Read().body, "next");
}

TEST_F(HttpServerStreamTest, ManyStreamsFromOneThreadAreWhole) {
  HttpServer::Options options;
  options.threads = 2;
  Start(options);
  constexpr int kStreams = 50;
  constexpr int kPieces = 200;
  std::vector<std::unique_ptr<RawClient>> clients;
  std::vector<std::shared_ptr<Responder>> responders;
  for (int i = 0; i < kStreams; ++i) {
    clients.push_back(std::make_unique<RawClient>(address()));
    responders.push_back(Begin(clients.back().get()));
  }
  std::thread writer([&] {
    for (int p = 0; p < kPieces; ++p) {
      for (int i = 0; i < kStreams; ++i) {
        EXPECT_TRUE(responders[i]->Write(absl::StrCat(i, ".", p, " ")));
      }
    }
    for (const auto& responder : responders) responder->End();
  });
  for (int i = 0; i < kStreams; ++i) {
    std::string expected;
    for (int p = 0; p < kPieces; ++p)
      absl::StrAppend(&expected, i, ".", p, " ");
    const RawAnswer answer = clients[i]->Read();
    EXPECT_TRUE(answer.whole);
    EXPECT_EQ(answer.body, expected);
  }
  writer.join();
}

TEST_F(HttpServerStreamTest, AnAbortedStreamIsNotWhole) {
  Start();
  RawClient client(address());
  const auto responder = Begin(&client);
  const auto gone = Gone(*responder);
  ASSERT_TRUE(responder->Write("abc"));
  responder->Abort();
  EXPECT_FALSE(responder->Write("def"));
  const RawAnswer answer = client.Read();
  EXPECT_EQ(answer.body, "abc");
  EXPECT_FALSE(answer.whole);
  EXPECT_TRUE(client.Ended());
  EXPECT_FALSE(gone->HasBeenNotified());
}

TEST_F(HttpServerStreamTest, AbortInsteadOfAnAnswer) {
  Start();
  RawClient client(address());
  ASSERT_TRUE(client.Send(kGet));
  held_.Next().responder->Abort();
  EXPECT_TRUE(client.Ended());
}

TEST_F(HttpServerStreamTest, Http10StreamsEndWithTheConnection) {
  Start();
  RawClient client(address());
  const auto responder =
      Begin(&client, "GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
  ASSERT_TRUE(responder->Write("abc"));
  ASSERT_TRUE(responder->Write("def"));
  responder->End();
  const std::string head = client.ReadUntil("\r\n\r\n");
  EXPECT_THAT(head, testing::HasSubstr("\r\nConnection: close\r\n"));
  EXPECT_EQ(client.ReadToEnd(), "abcdef");
}

// A body that ends with the connection has no other way to be cut off.
TEST_F(HttpServerStreamTest, AnAbortedHttp10StreamIsReset) {
  Start();
  RawClient client(address());
  const auto responder = Begin(&client, "GET / HTTP/1.0\r\n\r\n");
  ASSERT_TRUE(responder->Write("abc"));
  client.ReadUntil("\r\n\r\nabc");
  responder->Abort();
  char byte;
  EXPECT_EQ(recv(client.fd(), &byte, 1, 0), -1);
  EXPECT_EQ(errno, ECONNRESET);
}

TEST_F(HttpServerStreamTest, ALeavingClientIsNoticedWhileItWaits) {
  Start();
  for (const bool reset : {false, true}) {
    RawClient client(address());
    ASSERT_TRUE(client.Send(kPost));
    const HeldRequest held = held_.Next();
    const auto gone = Gone(*held.responder);
    EXPECT_FALSE(gone->HasBeenNotified());
    if (reset) {
      client.Reset();
    } else {
      client.Close();
    }
    EXPECT_TRUE(gone->WaitForNotificationWithTimeout(kSoon));
    held.responder->Send({});  // Goes nowhere.
  }
}

TEST_F(HttpServerStreamTest, ALeavingClientIsNoticedWhileItStreams) {
  Start();
  for (const bool reset : {false, true}) {
    RawClient client(address());
    const auto responder = Begin(&client);
    const auto gone = Gone(*responder);
    ASSERT_TRUE(responder->Write("abc"));
    client.ReadUntil("abc\r\n");
    if (reset) {
      client.Reset();
    } else {
      client.Close();
    }
    EXPECT_TRUE(gone->WaitForNotificationWithTimeout(kSoon));
    EXPECT_FALSE(responder->Write("def"));
    // Who asks late is told at once.
    bool told = false;
    responder->OnGone([&] { told = true; });
    EXPECT_TRUE(told);
  }
}

TEST_F(HttpServerStreamTest, ARequestSentAheadWaitsForTheStream) {
  Start();
  RawClient client(address());
  const auto responder =
      Begin(&client, absl::StrCat(kGet, "GET /b HTTP/1.1\r\nHo"));
  const auto gone = Gone(*responder);
  ASSERT_TRUE(client.Send("st: x\r\n\r\n"));
  ASSERT_TRUE(responder->Write("abc"));
  client.ReadUntil("abc\r\n");
  EXPECT_EQ(held_.waiting(), 0u);
  EXPECT_FALSE(gone->HasBeenNotified());
  responder->End();
  HeldRequest next = held_.Next();
  EXPECT_EQ(next.request.path, "/b");
  next.responder->Send({});
}

TEST_F(HttpServerStreamTest, WhatIsSentAheadIsBounded) {
  Start();
  RawClient client(address());
  const auto responder = Begin(&client);
  // Of this the server keeps a little, and the kernels some more: the rest
  // waits here until the stream has ended.
  constexpr int kRequests = 1000000;
  const std::string next = "GET /b HTTP/1.1\r\nHost: x\r\n\r\n";
  std::atomic<int> sent{0};
  std::thread sender([&] {
    for (int i = 0; i < kRequests / 1000; ++i) {
      std::string thousand;
      for (int k = 0; k < 1000; ++k) thousand += next;
      if (!client.Send(thousand)) return;
      sent += 1000;
    }
  });
  client.ReadUntil("\r\n\r\n");
  for (int i = 0; i < 1000; ++i) EXPECT_TRUE(responder->Write("x"));
  responder->End();
  client.ReadUntil("0\r\n\r\n");
  for (int i = 0; i < 100; ++i) {
    held_.Next().responder->Send({200, {}, "ok"});
    EXPECT_EQ(client.Read().body, "ok");
  }
  server_.reset();
  sender.join();
  EXPECT_LT(sent.load(), kRequests);
}

TEST_F(HttpServerStreamTest, WriteSaysWhenTheClientIsTooSlow) {
  HttpServer::Options options;
  options.max_pending_bytes = 100000;
  Start(options);
  RawClient client(address(), /*receive_bytes=*/4096);
  const auto responder = Begin(&client);
  const auto gone = Gone(*responder);
  const std::string piece(10000, 'x');
  // What the kernel takes, and the bound.
  int written = 0;
  while (responder->Write(piece)) ASSERT_LT(++written, 100000);
  EXPECT_GE(written, 10);
  EXPECT_TRUE(gone->WaitForNotificationWithTimeout(kSoon));
  EXPECT_FALSE(responder->Write("x"));
  client.ReadToEnd();
  EXPECT_EQ(metrics_
                .Counter("baton_http_connections_dropped_total",
                         "HTTP connections that the server refused or ended",
                         {{"reason", "slow_reader"}})
                ->Value(),
            1);
}

TEST_F(HttpServerStreamTest, AWholeAnswerWaitsForASlowReader) {
  Start();
  RawClient client(address(), /*receive_bytes=*/4096);
  ASSERT_TRUE(client.Send(kGet));
  const std::string body(8 << 20, 'x');
  held_.Next().responder->Send({200, {}, body});
  const RawAnswer answer = client.Read();
  EXPECT_TRUE(answer.whole);
  EXPECT_EQ(answer.body, body);
}

TEST_F(HttpServerStreamTest, ClientsThatDoNotReadDoNotDelayTheOthers) {
  Start();
  // Their streams are full, below the bound of pending bytes.
  std::vector<std::unique_ptr<RawClient>> stuck;
  std::vector<std::shared_ptr<Responder>> stuck_responders;
  const std::string piece(1000, 'x');
  for (int i = 0; i < 200; ++i) {
    stuck.push_back(std::make_unique<RawClient>(address(), 4096));
    stuck_responders.push_back(Begin(stuck.back().get()));
    for (int k = 0; k < 100; ++k) {
      ASSERT_TRUE(stuck_responders.back()->Write(piece));
    }
  }
  RawClient client(address());
  const auto responder = Begin(&client);
  client.ReadUntil("\r\n\r\n");
  for (int i = 0; i < 100; ++i) {
    for (const auto& other : stuck_responders) other->Write(piece);
    ASSERT_TRUE(responder->Write("y"));
    EXPECT_EQ(client.ReadUntil("y\r\n"), "1\r\ny\r\n");
  }
  responder->End();
  EXPECT_EQ(client.ReadUntil("\r\n\r\n"), "0\r\n\r\n");
}

TEST_F(HttpServerStreamTest, ResponderOutlivesTheServer) {
  Start();
  RawClient client(address());
  const auto responder = Begin(&client);
  int gone = 0;
  responder->OnGone([&] { ++gone; });
  server_.reset();
  EXPECT_EQ(gone, 1);
  EXPECT_FALSE(responder->Write("x"));
  responder->End();
  responder->Abort();
}

// For TSan: streams from one thread, while clients come and go.
TEST_F(HttpServerStreamTest, ClientsComeAndGoWhileOthersWrite) {
  HttpServer::Options options;
  options.threads = 2;
  Start(options);
  std::atomic<bool> done{false};
  std::thread writer([&] {
    std::vector<std::shared_ptr<Responder>> open;
    while (!done || held_.waiting() > 0) {
      while (held_.waiting() > 0) {
        open.push_back(held_.Next().responder);
        open.back()->Start({});
      }
      std::vector<std::shared_ptr<Responder>> left;
      for (auto& responder : open) {
        if (responder->Write("data: token\n\n")) left.push_back(responder);
      }
      open.swap(left);
      std::this_thread::yield();
    }
    for (auto& responder : open) responder->End();
  });
  std::vector<std::thread> clients;
  for (int t = 0; t < 4; ++t) {
    clients.emplace_back([&, t] {
      for (int i = 0; i < 20; ++i) {
        RawClient client(address());
        client.Send(kGet);
        if (i % 2 == 0) client.ReadUntil("token");
        if ((i + t) % 3 == 0) client.Reset();
      }
    });
  }
  for (auto& client : clients) client.join();
  done = true;
  writer.join();
  server_->Drain(kSoon);
}

}  // namespace
}  // namespace baton::router::http
