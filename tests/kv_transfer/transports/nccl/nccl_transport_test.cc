// What is particular to the transport over NCCL, beyond the contract of all
// transports (tests/kv_transfer/transport_contract_test.cc).
#include "kv_transfer/transports/nccl/nccl_transport.h"

#include <algorithm>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/kv_transfer/transports/nccl/nccl_pair.h"

namespace baton::kv_transfer {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;
using ::testing::UnorderedElementsAre;

// Lands a payload at the byte that its header says, as one extent, with that
// number as cookie; refuses "no".
void LandWhereTheHeaderSays(NcclEnd& end) {
  end.on_payload = [&end](const std::string& header,
                          uint64_t bytes) -> std::optional<Landing> {
    if (header == "no") return std::nullopt;
    const uint64_t at = std::stoull(header);
    return Landing{{{end.region, at, bytes}}, at};
  };
}

TEST(NcclTransportTest, SaysWhatItIs) {
  NcclPair pair;
  const TransportProperties& properties = pair.client->transport->properties();
  EXPECT_EQ(properties.name, "nccl");
  EXPECT_EQ(properties.address, "");
  const std::string control = pair.server->control->properties().address;
  EXPECT_EQ(pair.server->transport->properties().address, "nccl:" + control);
  // One that does not speak it is not waited for.
  const auto other = pair.client->transport->Connect(control);
  EXPECT_EQ(other.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(other.status().message(), HasSubstr("does not speak nccl"));
  EXPECT_TRUE(properties.detects_peer_death);
  EXPECT_EQ(properties.max_sends_in_flight, NcclOptions().max_sends_in_flight);
  EXPECT_EQ(properties.max_sends_outstanding,
            NcclOptions().max_sends_outstanding);
  EXPECT_EQ(properties.max_payload_extents, 192u);
  // An offer and its extents go before the header.
  EXPECT_EQ(properties.max_header_bytes, 4096u - 16 - 192 * 4);
}

TEST(NcclTransportTest, BadOptionsAreRefused) {
  FakeNetwork network;
  FakeFabric fabric;
  const auto code = [&](const NcclOptions& options) {
    return CreateNcclTransport(options, network.CreateTransport(false),
                               fabric.CreateEnd())
        .status()
        .code();
  };
  NcclOptions options;
  EXPECT_EQ(code(options), absl::StatusCode::kOk);
  options.max_sends_in_flight = 0;
  EXPECT_EQ(code(options), absl::StatusCode::kInvalidArgument);
  options.max_sends_in_flight = 1025;
  EXPECT_EQ(code(options), absl::StatusCode::kInvalidArgument);
  options = {};
  options.max_sends_outstanding = 0;
  EXPECT_EQ(code(options), absl::StatusCode::kInvalidArgument);
  options = {};
  options.create_timeout = absl::ZeroDuration();
  EXPECT_EQ(code(options), absl::StatusCode::kInvalidArgument);
}

TEST(NcclTransportTest, PayloadsAreCutWhereEitherSideCuts) {
  NcclPair pair;
  pair.client->Fill(1);
  const RegionId at = pair.server->region;
  pair.server->on_payload = [&](const std::string&, uint64_t) {
    return Landing{{{at, 100, 1000}, {at, 9000, 20000}, {at, 5000, 3000}}, 7};
  };
  pair.ConnectAndExpectUp();
  const RegionId from = pair.client->region;
  ASSERT_TRUE(
      pair.client
          ->Send("p",
                 {{from, 0, 8000}, {from, 20000, 8000}, {from, 10000, 8000}}, 5)
          .ok());
  pair.network.RunUntilIdle();
  EXPECT_THAT(pair.fabric.copied(),
              ElementsAre("1>0:1000,7000,8000,5000,3000"));
  EXPECT_EQ(pair.server->Count("landed 7"), 1);
  EXPECT_EQ(pair.client->Count("sent 5"), 1);
  const auto& sent = pair.client->memory;
  const auto& landed = pair.server->memory;
  EXPECT_TRUE(
      std::equal(sent.begin(), sent.begin() + 1000, landed.begin() + 100));
  EXPECT_TRUE(std::equal(sent.begin() + 1000, sent.begin() + 8000,
                         landed.begin() + 9000));
  EXPECT_TRUE(std::equal(sent.begin() + 20000, sent.begin() + 28000,
                         landed.begin() + 16000));
  EXPECT_TRUE(std::equal(sent.begin() + 10000, sent.begin() + 15000,
                         landed.begin() + 24000));
  EXPECT_TRUE(std::equal(sent.begin() + 15000, sent.begin() + 18000,
                         landed.begin() + 5000));
}

TEST(NcclTransportTest, WhatIsRefusedIsNeverPosted) {
  NcclPair pair;
  LandWhereTheHeaderSays(*pair.server);
  pair.ConnectAndExpectUp();
  pair.fabric.HoldPosts(true);
  for (uint64_t i = 0; i < 40; ++i) {
    ASSERT_TRUE(
        pair.client->Send("no", {{pair.client->region, 0, 100}}, i).ok());
  }
  pair.network.RunUntilIdle();
  EXPECT_EQ(pair.fabric.posted(), 0);
  EXPECT_EQ(pair.server->Count("payload no"), 40);
  for (uint64_t i = 0; i < 40; ++i) {
    EXPECT_EQ(pair.client->Count(absl::StrCat("sent ", i)), 1);
  }
}

// Acceptances and refusals of both sides in one row, with payloads of the same
// size and of others.
TEST(NcclTransportTest, BothDirectionsAreMatched) {
  NcclPair pair;
  pair.client->Fill(1);
  pair.server->Fill(77);
  LandWhereTheHeaderSays(*pair.server);
  LandWhereTheHeaderSays(*pair.client);
  const std::vector<std::byte> client_before = pair.client->memory;
  const std::vector<std::byte> server_before = pair.server->memory;
  pair.ConnectAndExpectUp();
  // The lower half is sent, the upper half lands.
  constexpr uint64_t kHalf = NcclEnd::kRegionBytes / 2;
  for (uint64_t i = 0; i < 32; ++i) {
    const uint64_t bytes = 900 + i % 4;
    for (NcclEnd* end : {pair.client.get(), pair.server.get()}) {
      const bool no = (i + (end == pair.client.get() ? 1 : 0)) % 3 == 0;
      const std::string header = no ? "no" : absl::StrCat(kHalf + i * 1000);
      ASSERT_TRUE(end->Send(header, {{end->region, i * 1000, bytes}}, i).ok());
    }
  }
  pair.network.RunUntilIdle();
  for (NcclEnd* end : {pair.client.get(), pair.server.get()}) {
    const bool is_client = end == pair.client.get();
    const NcclEnd& other = is_client ? *pair.server : *pair.client;
    const auto& before = is_client ? client_before : server_before;
    for (uint64_t i = 0; i < 32; ++i) {
      const uint64_t bytes = 900 + i % 4;
      EXPECT_EQ(end->Count(absl::StrCat("sent ", i)), 1);
      const bool no = (i + (is_client ? 1 : 0)) % 3 == 0;
      const uint64_t at = kHalf + i * 1000;
      EXPECT_EQ(other.Count(absl::StrCat("landed ", at)), no ? 0 : 1);
      EXPECT_EQ(std::equal(other.memory.begin() + at,
                           other.memory.begin() + at + bytes,
                           before.begin() + i * 1000),
                !no);
    }
  }
  EXPECT_THAT(pair.fabric.copied(), SizeIs(64 - 21));
}

TEST(NcclTransportTest, TheWindowIsKept) {
  NcclOptions options;
  options.max_sends_in_flight = 3;
  NcclPair pair(options);
  LandWhereTheHeaderSays(*pair.server);
  pair.ConnectAndExpectUp();
  pair.fabric.HoldPosts(true);
  for (uint64_t i = 0; i < 10; ++i) {
    ASSERT_TRUE(
        pair.client
            ->Send(absl::StrCat(i * 100), {{pair.client->region, 0, 100}}, i)
            .ok());
  }
  // Messages do not wait behind the window.
  ASSERT_TRUE(pair.client->Send("small", {}, 99).ok());
  pair.network.RunUntilIdle();
  EXPECT_EQ(pair.fabric.posted(), 6);
  EXPECT_EQ(pair.server->Count("message small"), 1);
  EXPECT_EQ(pair.client->Count("sent 99"), 1);
  pair.fabric.HoldPosts(false);
  pair.network.RunUntilIdle();
  EXPECT_THAT(pair.fabric.copied(), SizeIs(10));
}

TEST(NcclTransportTest, AFullControlTransportIsWaitedFor) {
  NcclOptions options;
  options.max_sends_in_flight = 4 * FakeNetwork::kMaxSendsOutstanding;
  NcclPair pair(options);
  LandWhereTheHeaderSays(*pair.server);
  pair.ConnectAndExpectUp();
  for (uint64_t i = 0; i < 200; ++i) {
    ASSERT_TRUE(
        pair.client
            ->Send(absl::StrCat(i * 100), {{pair.client->region, 0, 100}}, i)
            .ok());
    ASSERT_TRUE(pair.client->Send("m", {}, 1000 + i).ok());
  }
  pair.network.RunUntilIdle();
  EXPECT_EQ(pair.server->Count("message m"), 200);
  for (uint64_t i = 0; i < 200; ++i) {
    EXPECT_EQ(pair.client->Count(absl::StrCat("sent ", i)), 1);
    EXPECT_EQ(pair.client->Count(absl::StrCat("sent ", 1000 + i)), 1);
  }
}

// Memory that was posted is the transport's until the abort has ended.
TEST(NcclTransportTest, WhatWasPostedCompletesWhenTheAbortHasEnded) {
  NcclOptions options;
  options.max_sends_in_flight = 2;
  NcclPair pair(options);
  LandWhereTheHeaderSays(*pair.server);
  pair.ConnectAndExpectUp();
  pair.fabric.HoldPosts(true);
  for (uint64_t i = 0; i < 5; ++i) {
    ASSERT_TRUE(
        pair.client
            ->Send(absl::StrCat(i * 100), {{pair.client->region, 0, 100}}, i)
            .ok());
  }
  pair.network.RunUntilIdle();
  ASSERT_EQ(pair.fabric.posted(), 4);

  pair.fabric.HoldAborts(true);
  pair.client->transport->ClosePeer(pair.client->peer);
  pair.network.RunUntilIdle();
  EXPECT_EQ(pair.client->Count("down"), 1);
  EXPECT_EQ(pair.server->Count("down"), 1);
  // What was not posted has completed, and nothing else.
  EXPECT_THAT(pair.client->lines, Contains("not sent 2"));
  EXPECT_THAT(pair.client->lines, Contains("not sent 3"));
  EXPECT_THAT(pair.client->lines, Contains("not sent 4"));
  EXPECT_THAT(pair.client->lines, Not(Contains(HasSubstr("sent 0"))));
  EXPECT_THAT(pair.client->lines, Not(Contains(HasSubstr("sent 1"))));
  EXPECT_THAT(pair.server->lines, Not(Contains(HasSubstr("landed"))));
  EXPECT_EQ(pair.client->Send("late", {}, 6).code(),
            absl::StatusCode::kUnavailable);

  // The fake writes until then: afterwards, and not before, it is ours again.
  std::vector<std::byte> after;
  pair.server->on_landed = [&](uint64_t, const absl::Status&) {
    if (after.empty()) after = pair.server->memory;
  };
  pair.fabric.HoldAborts(false);
  pair.network.RunUntilIdle();
  EXPECT_EQ(pair.client->Count("not sent 0"), 1);
  EXPECT_EQ(pair.client->Count("not sent 1"), 1);
  EXPECT_EQ(pair.server->Count("not landed 0"), 1);
  EXPECT_EQ(pair.server->Count("not landed 100"), 1);
  EXPECT_TRUE(pair.server->memory == after);
  EXPECT_EQ(pair.fabric.alive(), 0);
}

class NcclTransportRankTest : public ::testing::TestWithParam<int> {};

TEST_P(NcclTransportRankTest, AFailedCommunicatorTakesThePeerDown) {
  NcclPair pair;
  LandWhereTheHeaderSays(*pair.server);
  pair.ConnectAndExpectUp();
  pair.fabric.HoldPosts(true);
  ASSERT_TRUE(
      pair.client->Send("500", {{pair.client->region, 0, 100}}, 1).ok());
  pair.network.RunUntilIdle();
  ASSERT_EQ(pair.fabric.posted(), 2);
  pair.fabric.Fail(GetParam(), absl::InternalError("unhandled cuda error"));
  pair.network.RunUntilIdle();
  NcclEnd& failed = GetParam() == 0 ? *pair.server : *pair.client;
  EXPECT_THAT(failed.why.message(),
              HasSubstr("the communicator failed: unhandled cuda error"));
  EXPECT_THAT(pair.client->lines, ElementsAre("up", "down", "not sent 1"));
  EXPECT_THAT(pair.server->lines,
              ElementsAre("up", "payload 500", "down", "not landed 500"));
  EXPECT_EQ(pair.fabric.alive(), 0);
  // Another connection has another communicator.
  pair.fabric.HoldPosts(false);
  pair.client->lines.clear();
  pair.server->lines.clear();
  pair.ConnectAndExpectUp();
  ASSERT_TRUE(
      pair.client->Send("500", {{pair.client->region, 0, 100}}, 2).ok());
  pair.network.RunUntilIdle();
  EXPECT_EQ(pair.server->Count("landed 500"), 1);
}

INSTANTIATE_TEST_SUITE_P(Ranks, NcclTransportRankTest, ::testing::Values(0, 1));

TEST(NcclTransportTest, ACommunicatorThatIsNotCreatedInTimeIsGivenUp) {
  NcclPair pair;
  pair.fabric.HoldCreation(true);
  pair.Connect();
  EXPECT_THAT(pair.client->lines, IsEmpty());
  EXPECT_EQ(pair.client->Send("early", {}, 1).code(),
            absl::StatusCode::kFailedPrecondition);
  pair.clock.now += absl::Seconds(19);
  pair.Tick();
  EXPECT_THAT(pair.client->lines, IsEmpty());
  pair.clock.now += absl::Seconds(2);
  pair.Tick();
  EXPECT_THAT(pair.client->lines, ElementsAre("down"));
  // It never came up there.
  EXPECT_THAT(pair.server->lines, IsEmpty());
  EXPECT_EQ(pair.fabric.created(), 2);
  EXPECT_EQ(pair.fabric.alive(), 0);
  EXPECT_TRUE(absl::IsDeadlineExceeded(pair.client->why));
  EXPECT_THAT(pair.client->why.message(), HasSubstr("no communicator in time"));
}

TEST(NcclTransportTest, ACommunicatorThatCannotBeCreatedIsGivenUp) {
  NcclPair pair;
  pair.fabric.FailCreation(absl::InternalError("no device"));
  pair.Connect();
  EXPECT_THAT(pair.client->lines, ElementsAre("down"));
  EXPECT_THAT(pair.server->lines, IsEmpty());
  EXPECT_EQ(pair.fabric.alive(), 0);
  pair.fabric.FailCreation(absl::OkStatus());
  pair.ConnectAndExpectUp();
}

TEST(NcclTransportTest, ClosingWhileTheCommunicatorIsCreated) {
  NcclPair pair;
  pair.fabric.HoldCreation(true);
  pair.Connect();
  ASSERT_EQ(pair.fabric.alive(), 2);
  pair.client->transport->ClosePeer(pair.client->peer);
  pair.network.RunUntilIdle();
  EXPECT_THAT(pair.client->lines, ElementsAre("down"));
  EXPECT_THAT(pair.server->lines, IsEmpty());
  EXPECT_EQ(pair.fabric.alive(), 0);
}

TEST(NcclTransportTest, ALostControlPeerIsALostPeer) {
  NcclPair pair;
  LandWhereTheHeaderSays(*pair.server);
  pair.network.notice_apart = true;
  pair.ConnectAndExpectUp();
  pair.fabric.HoldPosts(true);
  ASSERT_TRUE(
      pair.client->Send("500", {{pair.client->region, 0, 100}}, 1).ok());
  pair.network.RunUntilIdle();
  ASSERT_TRUE(pair.client->Send("message", {}, 2).ok());
  ASSERT_TRUE(pair.network.BreakConnection());
  pair.network.RunUntilIdle();
  EXPECT_EQ(pair.client->Count("not sent 1"), 1);
  EXPECT_EQ(pair.client->Count("not sent 2"), 1);
  EXPECT_THAT(pair.server->lines,
              ElementsAre("up", "payload 500", "down", "not landed 500"));
  EXPECT_EQ(pair.fabric.alive(), 0);
}

TEST(NcclTransportTest, StopWaitsForTheAbort) {
  NcclPair pair;
  LandWhereTheHeaderSays(*pair.server);
  LandWhereTheHeaderSays(*pair.client);
  pair.ConnectAndExpectUp();
  pair.fabric.HoldPosts(true);
  ASSERT_TRUE(
      pair.client->Send("500", {{pair.client->region, 0, 100}}, 1).ok());
  ASSERT_TRUE(
      pair.server->Send("600", {{pair.server->region, 0, 100}}, 2).ok());
  pair.network.RunUntilIdle();
  ASSERT_EQ(pair.fabric.posted(), 4);
  // This one is still in the mail.
  ASSERT_TRUE(pair.client->Send("late", {}, 3).ok());
  pair.client->transport->Stop();
  EXPECT_THAT(pair.client->lines,
              UnorderedElementsAre("up", "payload 600", "down", "not sent 1",
                                   "not landed 600", "not sent 3"));
  EXPECT_EQ(pair.fabric.alive(), 1);
  EXPECT_EQ(pair.client->Send("m", {}, 4).code(),
            absl::StatusCode::kUnavailable);
}

// Going on would hand out memory that a GPU may still write to.
TEST(NcclTransportDeathTest, AnAbortThatNeverEndsEndsTheProcess) {
  NcclOptions options;
  options.stop_timeout = absl::Milliseconds(50);
  NcclPair pair(options);
  pair.ConnectAndExpectUp();
  pair.fabric.HoldAborts(true);
  EXPECT_DEATH(pair.client->transport->Stop(), "did not become quiet");
  pair.fabric.HoldAborts(false);
}

TEST(NcclTransportTest, WorkOfItsOwnDoesNotCountAsATick) {
  NcclPair pair;
  LandWhereTheHeaderSays(*pair.server);
  pair.ConnectAndExpectUp();
  pair.Tick();
  const int before = pair.server->ticks;
  for (uint64_t i = 0; i < 50; ++i) {
    ASSERT_TRUE(
        pair.client
            ->Send(absl::StrCat(i * 100), {{pair.client->region, 0, 100}}, i)
            .ok());
  }
  pair.network.RunUntilIdle();
  ASSERT_THAT(pair.fabric.copied(), SizeIs(50));
  EXPECT_EQ(pair.server->ticks, before);
  pair.server->transport->Wake();
  pair.network.RunUntilIdle();
  EXPECT_EQ(pair.server->ticks, before + 1);
  // However much there is to do, ticks come.
  const int then = pair.server->ticks;
  pair.clock.now += absl::Seconds(1);
  ASSERT_TRUE(
      pair.client->Send("500", {{pair.client->region, 0, 100}}, 99).ok());
  pair.network.RunUntilIdle();
  EXPECT_GT(pair.server->ticks, then);
}

}  // namespace
}  // namespace baton::kv_transfer
