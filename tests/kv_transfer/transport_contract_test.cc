// What every transport promises (kv_transfer/transport.h), on each of them, so
// that the fake cannot lie.
#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/kv_transfer/transport_contract.h"

namespace baton::kv_transfer {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

TEST_P(TransportContractTest, ConnectTellsBothSides) {
  Node server(*network_, true), client(*network_, false);
  EXPECT_NE(server.address(), "");
  EXPECT_EQ(client.address(), "");
  EXPECT_NE(client.transport->properties().name, "");
  Connect(client, server);
  EXPECT_THAT(client.recorder.ups, ElementsAre(client_peer_));
  EXPECT_THAT(client.recorder.addresses, ElementsAre(server.address()));
  EXPECT_THAT(server.recorder.ups, ElementsAre(server_peer_));
}

TEST_P(TransportContractTest, MessagesArriveBothWays) {
  Node server(*network_, true), client(*network_, false);
  Connect(client, server);
  const std::string longest(client.transport->properties().max_header_bytes,
                            'x');
  ASSERT_TRUE(client.transport->Send(client_peer_, Bytes("hello"), {}, 7).ok());
  ASSERT_TRUE(client.transport->Send(client_peer_, Bytes(longest), {}, 8).ok());
  ASSERT_TRUE(
      server.transport->Send(server_peer_, Bytes("and back"), {}, 9).ok());
  ASSERT_TRUE(Await(server.recorder,
                    [&] { return server.recorder.messages.size() == 2; }));
  ASSERT_TRUE(Await(client.recorder,
                    [&] { return client.recorder.messages.size() == 1; }));
  ASSERT_TRUE(
      Await(client.recorder, [&] { return client.recorder.sent.size() == 2; }));
  EXPECT_THAT(server.recorder.messages,
              ::testing::UnorderedElementsAre("hello", longest));
  EXPECT_THAT(client.recorder.messages, ElementsAre("and back"));
  EXPECT_THAT(
      client.recorder.sent,
      ::testing::UnorderedElementsAre(
          Recorder::Completion{client_peer_, 7, absl::StatusCode::kOk},
          Recorder::Completion{client_peer_, 8, absl::StatusCode::kOk}));
}

TEST_P(TransportContractTest, HeaderIsCopied) {
  Node server(*network_, true), client(*network_, false);
  Connect(client, server);
  std::string header = "first";
  ASSERT_TRUE(client.transport->Send(client_peer_, Bytes(header), {}, 1).ok());
  header = "XXXXX";
  ASSERT_TRUE(Await(server.recorder,
                    [&] { return server.recorder.messages.size() == 1; }));
  EXPECT_THAT(server.recorder.messages, ElementsAre("first"));
}

TEST_P(TransportContractTest, PayloadLandsWhereTheReceiverSays) {
  Node server(*network_, true), client(*network_, false);
  client.Fill(1);
  server.Fill(200);
  const std::vector<std::byte> before = server.Copy();
  Connect(client, server);
  {
    // Cut otherwise than by the sender.
    absl::MutexLock lock(&server.recorder.mu);
    server.recorder.on_payload = [&](ByteSpan, uint64_t) {
      return Landing{{{server.region, 100, 1000},
                      {server.region, 9000, 20000},
                      {server.region, 5000, 3000}},
                     42};
    };
  }
  const std::vector<Extent> payload = {{client.region, 0, 8000},
                                       {client.region, 20000, 8000},
                                       {client.region, 10000, 8000}};
  ASSERT_TRUE(
      client.transport->Send(client_peer_, Bytes("pages"), payload, 5).ok());
  ASSERT_TRUE(
      Await(client.recorder, [&] { return client.recorder.sent.size() == 1; }));
  ASSERT_TRUE(Await(server.recorder,
                    [&] { return server.recorder.landed.size() == 1; }));
  EXPECT_THAT(server.recorder.payload_headers, ElementsAre("pages"));
  EXPECT_THAT(server.recorder.payload_bytes, ElementsAre(24000));
  EXPECT_THAT(server.recorder.landed,
              ElementsAre(Recorder::Completion{server_peer_, 42,
                                               absl::StatusCode::kOk}));
  EXPECT_EQ(client.recorder.sent[0],
            (Recorder::Completion{client_peer_, 5, absl::StatusCode::kOk}));

  std::vector<std::byte> sent;
  for (const Extent& e : payload) {
    sent.insert(sent.end(), client.memory.begin() + e.offset,
                client.memory.begin() + e.offset + e.length);
  }
  std::vector<std::byte> expected = before;
  std::copy_n(sent.begin(), 1000, expected.begin() + 100);
  std::copy_n(sent.begin() + 1000, 20000, expected.begin() + 9000);
  std::copy_n(sent.begin() + 21000, 3000, expected.begin() + 5000);
  EXPECT_TRUE(server.Copy() == expected);
}

// Some say what lands before it has landed: then all of it, in order, exactly
// as memory has it, also when both sides cut it in pieces, each its own way.
TEST_P(TransportContractTest, WhatIsSaidOfLandingsIsWhatLands) {
  constexpr uint64_t kBytes = 1 << 20;
  constexpr int kLandings = 20;
  constexpr uint64_t kRoom = 2 * kBytes;
  Node server(*network_, true, kLandings * kRoom);
  Node client(*network_, false, kBytes);
  client.Fill(5);
  Connect(client, server);
  const auto extents_of = [&](uint64_t cookie) {
    const uint64_t at = cookie * kRoom;
    return std::vector<Extent>{{server.region, at + 80000, kBytes - 70000},
                               {server.region, at + 1, 333},
                               {server.region, at + 1000, 70000 - 333}};
  };
  {
    absl::MutexLock lock(&server.recorder.mu);
    server.recorder.on_payload = [extents_of, next = uint64_t{0}](
                                     ByteSpan, uint64_t) mutable {
      const uint64_t cookie = next++;
      return Landing{extents_of(cookie), cookie};
    };
  }
  const std::vector<Extent> payload = {{client.region, 12345, kBytes - 12345},
                                       {client.region, 0, 12345}};
  // Enough at a stretch that a transport which treats large transfers in
  // another way does so.
  for (int i = 0; i < kLandings; ++i) {
    ASSERT_TRUE(
        client.transport->Send(client_peer_, Bytes("p"), payload, 5).ok());
  }
  ASSERT_TRUE(Await(server.recorder, [&] {
    return server.recorder.landed.size() == kLandings;
  }));
  std::string expected;
  for (const Extent& e : payload) {
    expected += Text(client.memory.subspan(e.offset, e.length));
  }
  absl::MutexLock lock(&server.recorder.mu);
  EXPECT_TRUE(server.recorder.said.empty() ||
              server.recorder.said.size() == kLandings);
  for (uint64_t cookie = 0; cookie < kLandings; ++cookie) {
    std::string landed;
    for (const Extent& e : extents_of(cookie)) {
      landed += Text(server.memory.subspan(e.offset, e.length));
    }
    EXPECT_TRUE(landed == expected) << cookie;
    const auto said = server.recorder.said.find({server_peer_, cookie});
    if (said == server.recorder.said.end()) continue;
    EXPECT_TRUE(said->second == expected) << cookie;
  }
}

TEST_P(TransportContractTest, RefusedPayloadTouchesNothing) {
  Node server(*network_, true), client(*network_, false);
  client.Fill(1);
  server.Fill(200);
  const std::vector<std::byte> before = server.Copy();
  Connect(client, server);
  const std::vector<Extent> payload = {{client.region, 0, 60000}};
  ASSERT_TRUE(
      client.transport->Send(client_peer_, Bytes("unwanted"), payload, 5).ok());
  ASSERT_TRUE(
      Await(client.recorder, [&] { return client.recorder.sent.size() == 1; }));
  EXPECT_EQ(client.recorder.sent[0].code, absl::StatusCode::kOk);
  // A completed send may still be on its way.
  ASSERT_TRUE(Await(server.recorder, [&] {
    return server.recorder.payload_headers.size() == 1;
  }));
  ASSERT_TRUE(client.transport->Send(client_peer_, Bytes("after"), {}, 6).ok());
  ASSERT_TRUE(Await(server.recorder,
                    [&] { return server.recorder.messages.size() == 1; }));
  EXPECT_THAT(server.recorder.payload_headers, ElementsAre("unwanted"));
  EXPECT_THAT(server.recorder.landed, IsEmpty());
  EXPECT_TRUE(server.Copy() == before);
}

TEST_P(TransportContractTest, ManyPayloadsLandAndCompleteOnce) {
  constexpr size_t kPage = 512;
  constexpr size_t kPages = 128;
  Node server(*network_, true, kPage * kPages);
  Node client(*network_, false, kPage * kPages);
  client.Fill(3);
  Connect(client, server);
  {
    absl::MutexLock lock(&server.recorder.mu);
    server.recorder.on_payload = [&](ByteSpan header, uint64_t bytes) {
      const uint64_t page = std::stoull(Text(header));
      return Landing{{{server.region, page * kPage, bytes}}, page};
    };
  }
  size_t next = 0;
  while (next < kPages) {
    const std::vector<Extent> payload = {{client.region, next * kPage, kPage}};
    const absl::Status status = client.transport->Send(
        client_peer_, Bytes(std::to_string(next)), payload, next);
    if (status.ok()) {
      ++next;
      continue;
    }
    ASSERT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
    const size_t sent_before = next;
    ASSERT_TRUE(Await(client.recorder, [&] {
      return client.recorder.sent.size() + 8 > sent_before;
    }));
  }
  ASSERT_TRUE(Await(client.recorder,
                    [&] { return client.recorder.sent.size() == kPages; }));
  ASSERT_TRUE(Await(server.recorder,
                    [&] { return server.recorder.landed.size() == kPages; }));
  EXPECT_TRUE(server.Copy() == client.Copy());
  std::map<uint64_t, int> completions;
  for (const auto& completion : server.recorder.landed) {
    ++completions[completion.cookie];
  }
  EXPECT_THAT(completions, SizeIs(kPages));
}

TEST_P(TransportContractTest, SendIsBoundedAndSaysSo) {
  uint32_t accepted = 0;
  bool done = false;
  Node server(*network_, true), client(*network_, false);
  Connect(client, server);
  // On the progress thread nothing completes meanwhile: the count is exact.
  {
    absl::MutexLock lock(&client.recorder.mu);
    client.recorder.on_message = [&](PeerId peer, ByteSpan) {
      absl::Status status;
      while ((status = client.transport->Send(peer, Bytes("m"), {}, 1)).ok()) {
        ++accepted;
      }
      EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
      absl::MutexLock inner(&client.recorder.mu);
      done = true;
    };
  }
  ASSERT_TRUE(server.transport->Send(server_peer_, Bytes("go"), {}, 1).ok());
  ASSERT_TRUE(Await(client.recorder, [&] { return done; }));
  EXPECT_EQ(accepted, client.transport->properties().max_sends_outstanding);
  ASSERT_TRUE(Await(client.recorder,
                    [&] { return client.recorder.sent.size() == accepted; }));
  EXPECT_TRUE(client.transport->Send(client_peer_, Bytes("m"), {}, 1).ok());
}

TEST_P(TransportContractTest, BadSendsAreRefused) {
  Node server(*network_, true), client(*network_, false);
  Connect(client, server);
  const auto code = [&](const std::string& header,
                        const std::vector<Extent>& payload) {
    return client.transport->Send(client_peer_, Bytes(header), payload, 1)
        .code();
  };
  const uint64_t size = client.memory.size();
  const auto& limits = client.transport->properties();
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  EXPECT_EQ(code("", {}), kInvalid);
  EXPECT_EQ(code(std::string(limits.max_header_bytes + 1, 'x'), {}), kInvalid);
  EXPECT_EQ(code("h", {{RegionId{99}, 0, 1}}), kInvalid);
  EXPECT_EQ(code("h", {{client.region, size, 1}}), kInvalid);
  EXPECT_EQ(code("h", {{client.region, 1, size}}), kInvalid);
  EXPECT_EQ(code("h", {{client.region, 1, ~uint64_t{0}}}), kInvalid);
  EXPECT_EQ(code("h", {{client.region, 0, 0}}), kInvalid);
  EXPECT_EQ(code("h", std::vector<Extent>(limits.max_payload_extents + 1,
                                          {client.region, 0, 1})),
            kInvalid);
  EXPECT_EQ(client.transport->Send(PeerId{123456}, Bytes("h"), {}, 1).code(),
            absl::StatusCode::kUnavailable);
}

TEST_P(TransportContractTest, SendBeforeUpIsRefused) {
  absl::Status status;
  bool done = false;
  Node server(*network_, true), client(*network_, false);
  // From the progress thread, so that the connection cannot come up meanwhile.
  Connect(client, server);
  {
    absl::MutexLock lock(&client.recorder.mu);
    client.recorder.on_message = [&](PeerId, ByteSpan) {
      auto second = client.transport->Connect(server.address());
      ASSERT_TRUE(second.ok());
      status = client.transport->Send(*second, Bytes("early"), {}, 1);
      absl::MutexLock inner(&client.recorder.mu);
      done = true;
    };
  }
  ASSERT_TRUE(server.transport->Send(server_peer_, Bytes("go"), {}, 1).ok());
  ASSERT_TRUE(Await(client.recorder, [&] { return done; }));
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
}

TEST_P(TransportContractTest, ClosePeerCompletesEverything) {
  constexpr uint32_t kSends = 40;
  uint32_t accepted = 0;
  bool closed = false;
  Node server(*network_, true, 1 << 20), client(*network_, false, 1 << 20);
  Connect(client, server);
  {
    absl::MutexLock lock(&server.recorder.mu);
    server.recorder.on_payload = [&, next = uint64_t{0}](
                                     ByteSpan, uint64_t bytes) mutable {
      return Landing{{{server.region, 0, bytes}}, next++};
    };
  }
  // On the progress thread nothing completes meanwhile: the last of them are
  // far behind the window when the peer is closed.
  {
    absl::MutexLock lock(&client.recorder.mu);
    client.recorder.on_message = [&](PeerId peer, ByteSpan) {
      const std::vector<Extent> payload = {{client.region, 0, 1 << 20}};
      for (uint32_t i = 0; i < kSends; ++i) {
        const absl::Status sent =
            client.transport->Send(peer, Bytes("p"), payload, i);
        EXPECT_TRUE(sent.ok()) << sent;
        accepted += sent.ok();
      }
      client.transport->ClosePeer(peer);
      client.transport->ClosePeer(peer);
      absl::MutexLock inner(&client.recorder.mu);
      closed = true;
    };
  }
  ASSERT_TRUE(server.transport->Send(server_peer_, Bytes("go"), {}, 1).ok());
  ASSERT_TRUE(Await(client.recorder, [&] { return closed; }));
  ASSERT_EQ(accepted, kSends);
  ASSERT_TRUE(Await(client.recorder,
                    [&] { return client.recorder.sent.size() == kSends; }));
  ASSERT_TRUE(
      Await(client.recorder, [&] { return !client.recorder.downs.empty(); }));
  ASSERT_TRUE(
      Await(server.recorder, [&] { return !server.recorder.downs.empty(); }));
  ASSERT_TRUE(Await(server.recorder, [&] {
    return server.recorder.landed.size() ==
           static_cast<size_t>(server.recorder.accepted);
  }));
  EXPECT_THAT(client.recorder.downs, ElementsAre(client_peer_));
  EXPECT_THAT(server.recorder.downs, ElementsAre(server_peer_));
  EXPECT_EQ(client.transport->Send(client_peer_, Bytes("m"), {}, 1).code(),
            absl::StatusCode::kUnavailable);
  EXPECT_TRUE(std::any_of(
      client.recorder.sent.begin(), client.recorder.sent.end(),
      [](const auto& c) { return c.code != absl::StatusCode::kOk; }));
}

TEST_P(TransportContractTest, StopTellsThePeerAndCompletesEverything) {
  Node server(*network_, true), client(*network_, false);
  Connect(client, server);
  const std::vector<Extent> payload = {{client.region, 0, 60000}};
  for (int i = 0; i < 20; ++i) {
    ASSERT_TRUE(
        client.transport->Send(client_peer_, Bytes("p"), payload, i).ok());
  }
  client.transport->Stop();
  EXPECT_THAT(client.recorder.sent, SizeIs(20));
  EXPECT_THAT(client.recorder.downs, ElementsAre(client_peer_));
  client.transport->Stop();
  ASSERT_TRUE(
      Await(server.recorder, [&] { return !server.recorder.downs.empty(); }));
  EXPECT_EQ(client.transport->Send(client_peer_, Bytes("m"), {}, 1).code(),
            absl::StatusCode::kUnavailable);
}

TEST_P(TransportContractTest, PeerIdsAreNotReused) {
  Node server(*network_, true), client(*network_, false);
  Connect(client, server);
  const PeerId first = client_peer_, first_at_server = server_peer_;
  client.transport->ClosePeer(client_peer_);
  ASSERT_TRUE(
      Await(server.recorder, [&] { return !server.recorder.downs.empty(); }));
  auto again = client.transport->Connect(server.address());
  ASSERT_TRUE(again.ok());
  EXPECT_NE(*again, first);
  ASSERT_TRUE(
      Await(server.recorder, [&] { return server.recorder.ups.size() == 2; }));
  EXPECT_NE(server.recorder.ups[1], first_at_server);
}

TEST_P(TransportContractTest, ConnectToNobodyFails) {
  Node client(*network_, false);
  std::string address;
  {
    Node gone(*network_, true);
    address = gone.address();
  }
  auto peer = client.transport->Connect(address);
  ASSERT_TRUE(peer.ok());
  ASSERT_TRUE(
      Await(client.recorder, [&] { return !client.recorder.downs.empty(); }));
  EXPECT_THAT(client.recorder.downs, ElementsAre(*peer));
  EXPECT_THAT(client.recorder.ups, IsEmpty());
}

TEST_P(TransportContractTest, MalformedAddressIsRefused) {
  Node client(*network_, false);
  for (const char* address : {"", "nowhere", "not a host:12x"}) {
    EXPECT_EQ(client.transport->Connect(address).status().code(),
              absl::StatusCode::kInvalidArgument)
        << address;
  }
}

TEST_P(TransportContractTest, WakeBringsATick) {
  Node client(*network_, false);
  for (int i = 0; i < 3; ++i) {
    int before = 0;
    {
      absl::MutexLock lock(&client.recorder.mu);
      before = client.recorder.ticks;
    }
    client.transport->Wake();
    ASSERT_TRUE(
        Await(client.recorder, [&] { return client.recorder.ticks > before; }));
  }
}

TEST_P(TransportContractTest, NamesWhatAPeerIsConnectedBy) {
  Node server(*network_, true), client(*network_, false);
  Connect(client, server);
  const std::string name = client.transport->PeerProperties(client_peer_).name;
  EXPECT_EQ(name, server.transport->PeerProperties(server_peer_).name);
  const std::map<std::string, std::string> expected = {
      {"fake", "fake"},
      {"ucx", "ucx/tcp"},
      {"tcp", "tcp"},
      {"tls", "tcp/tls"},
      {"tls_taken", "tcp/tls"},
      {"local", "local/memfd"},
      {"auto", "local/memfd"},
      {"fallback", "ucx/tcp"},
      {"door", "ucx/tcp"},
      {"nccl", "nccl"},
      {"nccl_over_fake", "nccl"}};
  EXPECT_EQ(name, expected.at(GetParam()));
  EXPECT_EQ(client.transport->PeerProperties(PeerId{4711}).name,
            client.transport->properties().name);
}

TEST_P(TransportContractTest, HandlersMaySend) {
  Node server(*network_, true), client(*network_, false);
  Connect(client, server);
  {
    absl::MutexLock lock(&server.recorder.mu);
    server.recorder.on_message = [&](PeerId peer, ByteSpan header) {
      const std::string echo = "echo " + Text(header);
      EXPECT_TRUE(server.transport->Send(peer, Bytes(echo), {}, 1).ok());
    };
  }
  ASSERT_TRUE(client.transport->Send(client_peer_, Bytes("ping"), {}, 1).ok());
  ASSERT_TRUE(Await(client.recorder,
                    [&] { return client.recorder.messages.size() == 1; }));
  EXPECT_THAT(client.recorder.messages, ElementsAre("echo ping"));
}

INSTANTIATE_TEST_SUITE_P(Transports, TransportContractTest,
                         ::testing::Values("fake", "ucx", "local", "tcp", "tls",
                                           "tls_taken", "auto", "fallback",
                                           "door", "nccl", "nccl_over_fake"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace baton::kv_transfer
