#include "kv_transfer/link_probe.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <random>
#include <variant>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kv_transfer/link_meter.h"
#include "tests/kv_transfer/handoff_pair.h"

namespace baton::kv_transfer {
namespace {

using testing::IsEmpty;
using testing::SizeIs;

// A link in a model: a fixed time there and back, more of it for a payload
// however small (it is announced and asked for), and bytes by bandwidth.
struct Link {
  absl::Duration round_trip;
  double bytes_per_second = 0;
  absl::Duration announcement = absl::ZeroDuration();
  // What else the n-th message takes.
  std::function<absl::Duration(int)> noise = [](int) {
    return absl::ZeroDuration();
  };
};

struct Measured {
  std::optional<LinkSpeed> speed;
  int messages = 0;
  uint64_t bytes = 0;
  uint64_t largest = 0;
  absl::Duration took;
};

Measured Probe(const Link& link,
               uint64_t max_payload_bytes = LinkProbe::kMaxPayloadBytes) {
  const absl::Time start = absl::UnixEpoch();
  absl::Time now = start;
  LinkProbe probe(max_payload_bytes, now);
  Measured out;
  LinkProbe::Step step = probe.Start();
  while (step.send && out.messages < 1000) {
    EXPECT_FALSE(probe.result().has_value());
    now += link.round_trip + link.noise(out.messages);
    if (step.payload_bytes > 0) {
      now += link.announcement +
             absl::Seconds(static_cast<double>(step.payload_bytes) /
                           link.bytes_per_second);
    }
    ++out.messages;
    out.bytes += step.payload_bytes;
    out.largest = std::max(out.largest, step.payload_bytes);
    EXPECT_FALSE(probe.Late(now)) << out.messages;
    step = probe.OnReply(step.sequence, now);
  }
  out.speed = probe.result();
  out.took = now - start;
  return out;
}

// How far off, as a factor of at least 1.
double Off(double measured, double truth) {
  return std::max(measured / truth, truth / measured);
}

constexpr double kBandwidths[] = {1.25e6, 12.5e6, 125e6, 1.25e9, 3e9, 10e9};

TEST(LinkProbeTest, MeasuresQuietLinks) {
  for (double bandwidth : kBandwidths) {
    for (absl::Duration round_trip :
         {absl::Microseconds(20), absl::Microseconds(300),
          absl::Milliseconds(100)}) {
      const Measured m = Probe({.round_trip = round_trip,
                                .bytes_per_second = bandwidth,
                                .announcement = round_trip});
      ASSERT_TRUE(m.speed.has_value()) << bandwidth;
      EXPECT_EQ(m.speed->latency, round_trip / 2);
      EXPECT_LT(Off(m.speed->bytes_per_second, bandwidth), 1.02) << bandwidth;
    }
  }
}

// Each message late by up to a third of the way there and back, or 100 us, and
// some by a thread that slept.
TEST(LinkProbeTest, MeasuresNoisyLinks) {
  for (double bandwidth : kBandwidths) {
    for (absl::Duration round_trip :
         {absl::Microseconds(30), absl::Microseconds(300),
          absl::Milliseconds(20)}) {
      const absl::Duration late =
          std::min(round_trip / 3, absl::Microseconds(100));
      // A link as fast as memory is not far away.
      const double largest = LinkProbe::kMaxPayloadBytes;
      if (absl::Seconds(largest / bandwidth) < 5 * late) continue;
      std::vector<double> off;
      for (uint32_t seed = 1; seed <= 101; ++seed) {
        std::minstd_rand random(seed);
        random.discard(10);
        const Measured m = Probe(
            {.round_trip = round_trip,
             .bytes_per_second = bandwidth,
             .announcement = round_trip,
             .noise = [&](int) {
               const double part = static_cast<double>(random() % 1000) / 1000;
               const bool slept = random() % 5 == 0;
               return late * part +
                      (slept ? absl::Microseconds(200) : absl::ZeroDuration());
             }});
        ASSERT_TRUE(m.speed.has_value());
        off.push_back(Off(m.speed->bytes_per_second, bandwidth));
      }
      std::sort(off.begin(), off.end());
      EXPECT_LT(off[off.size() / 2], 1.1) << bandwidth << " " << round_trip;
      EXPECT_LT(off[off.size() * 9 / 10], 1.3)
          << bandwidth << " " << round_trip;
    }
  }
}

TEST(LinkProbeTest, TheFirstMessagesMayBeSlow) {
  const Measured m = Probe({.round_trip = absl::Microseconds(30),
                            .bytes_per_second = 5e9,
                            .noise = [](int n) {
                              // Of each kind.
                              return n == 0 || n == 4 || n == 7 || n == 10
                                         ? absl::Milliseconds(3)
                                         : absl::ZeroDuration();
                            }});
  ASSERT_TRUE(m.speed.has_value());
  EXPECT_EQ(m.speed->latency, absl::Microseconds(15));
  EXPECT_LT(Off(m.speed->bytes_per_second, 5e9), 1.3);
}

TEST(LinkProbeTest, TheSmallestMayAllBeSlow) {
  const auto held_up = [](int n) {
    return n >= 4 && n < 7 ? absl::Milliseconds(10) : absl::ZeroDuration();
  };
  const Measured m = Probe({.round_trip = absl::Microseconds(30),
                            .bytes_per_second = 5e9,
                            .noise = held_up});
  ASSERT_TRUE(m.speed.has_value());
  EXPECT_LT(Off(m.speed->bytes_per_second, 5e9), 1.5);
}

TEST(LinkProbeTest, TakesLittle) {
  // As fast as memory: a few MB, in a moment.
  const Measured fast =
      Probe({.round_trip = absl::Microseconds(30), .bytes_per_second = 10e9});
  EXPECT_EQ(fast.largest, LinkProbe::kMaxPayloadBytes);
  EXPECT_LE(fast.bytes, uint64_t{4} << 20);
  EXPECT_LT(fast.took, absl::Milliseconds(2));
  // 10 Mbit/s: payloads that hold up others for little.
  const Measured slow =
      Probe({.round_trip = absl::Milliseconds(1), .bytes_per_second = 1.25e6});
  EXPECT_LE(slow.largest, uint64_t{16} << 10);
  EXPECT_LT(slow.took, absl::Milliseconds(100));
  // 1 Gbit/s, in one building.
  const Measured office =
      Probe({.round_trip = absl::Microseconds(200), .bytes_per_second = 125e6});
  EXPECT_LE(office.largest, uint64_t{256} << 10);
  EXPECT_LT(office.took, absl::Milliseconds(20));
}

TEST(LinkProbeTest, KeepsToSmallPayloads) {
  for (uint64_t max_bytes : {uint64_t{1}, uint64_t{2}, uint64_t{5000}}) {
    const Measured m =
        Probe({.round_trip = absl::Microseconds(30), .bytes_per_second = 1e9},
              max_bytes);
    EXPECT_EQ(m.largest, max_bytes);
    ASSERT_TRUE(m.speed.has_value());
    EXPECT_GT(m.speed->bytes_per_second, 0);
  }
}

TEST(LinkProbeTest, ForeignAnswersCountForNothing) {
  const absl::Time now = absl::UnixEpoch();
  LinkProbe probe(LinkProbe::kMaxPayloadBytes, now);
  const LinkProbe::Step first = probe.Start();
  EXPECT_FALSE(probe.OnReply(first.sequence + 1, now).send);
  const LinkProbe::Step second = probe.OnReply(first.sequence, now);
  ASSERT_TRUE(second.send);
  EXPECT_NE(second.sequence, first.sequence);
  // Twice, too late, too early.
  EXPECT_FALSE(probe.OnReply(first.sequence, now).send);
  EXPECT_FALSE(probe.OnReply(second.sequence + 1, now).send);
  EXPECT_FALSE(probe.result().has_value());
  EXPECT_FALSE(probe.Late(now + LinkProbe::kPatience - absl::Seconds(1)));
  EXPECT_TRUE(probe.Late(now + LinkProbe::kPatience));
}

// Two workers on the fake network.
class MeasuredLinkTest : public HandoffPairTest {
 protected:
  void SetUp() override {
    probe_links_ = true;
    receiver_transport_ = network_.CreateTransport(/*listen=*/true);
    receiver_ = MakeReceiver(receiver_transport_.get());
    sender_transport_ = network_.CreateTransport(/*listen=*/false);
    sender_ = MakeSender(sender_transport_.get(), sender_memory_, kPrefill);
  }
  // How many probes, answers not counted, are sent while it runs.
  int CountProbes(const std::function<void()>& run) {
    int count = 0;
    network_.judge = [&](ByteSpan header, bool) {
      const auto message = wire::Decode(header);
      count +=
          message.ok() && std::holds_alternative<wire::Probe>(message->body);
      return FakeNetwork::Fate::kDeliver;
    };
    run();
    network_.judge = nullptr;
    return count;
  }
  std::vector<Sender::Event> Pair() {
    EXPECT_TRUE(sender_->Pair(receiver_transport_->properties().address).ok());
    network_.RunUntilIdle();
    return PollSender();
  }
};

TEST_F(MeasuredLinkTest, ThePairingSideLearnsOnce) {
  const auto events = Pair();
  EXPECT_THAT(Only<PeerReady>(events), SizeIs(1));
  const auto measured = Only<LinkMeasured>(events);
  ASSERT_THAT(measured, SizeIs(1));
  EXPECT_EQ(measured[0].incarnation, Incarnation{kDecode});
  EXPECT_EQ(measured[0].worker_name, "decode-0");
  EXPECT_EQ(measured[0].transport, sender_transport_->properties().name);
  EXPECT_GT(measured[0].speed.bytes_per_second, 0);
  // No page was touched, and hand-offs go on as ever.
  OpenAndStart(3);
  SendAllLayers(3);
  sender_->Commit(kId, {.first_token = 1, .next_token_index = 1});
  network_.RunUntilIdle();
  EXPECT_THAT(Only<Receiver::Landed>(PollReceiver()), SizeIs(1));
}

TEST_F(MeasuredLinkTest, LostAnswersEndItWithoutAResult) {
  network_.judge = [](ByteSpan, bool has_payload) {
    return has_payload ? FakeNetwork::Fate::kDrop : FakeNetwork::Fate::kDeliver;
  };
  EXPECT_THAT(Only<LinkMeasured>(Pair()), IsEmpty());
  clock_.Advance(LinkProbe::kPatience);
  network_.Tick();
  network_.RunUntilIdle();
  EXPECT_THAT(PollSender(), IsEmpty());
  EXPECT_TRUE(sender_->IsReady(Incarnation{kDecode}));
}

// What was slow when the two were paired, and is not: known 2 s later.
TEST_F(MeasuredLinkTest, ItIsMeasuredAgain) {
  network_.judge = [this](ByteSpan, bool has_payload) {
    clock_.Advance(absl::Milliseconds(has_payload ? 4 : 1));
    return FakeNetwork::Fate::kDeliver;
  };
  const auto first = Only<LinkMeasured>(Pair());
  ASSERT_THAT(first, SizeIs(1));
  network_.judge = nullptr;
  AdvanceAndTick(LinkMeter::kSecond - absl::Milliseconds(1));
  EXPECT_THAT(PollSender(), IsEmpty());
  AdvanceAndTick(absl::Milliseconds(1));
  const auto second = Only<LinkMeasured>(PollSender());
  ASSERT_THAT(second, SizeIs(1));
  EXPECT_EQ(second[0].worker_name, "decode-0");
  EXPECT_LT(second[0].speed.latency, first[0].speed.latency);
  EXPECT_GT(second[0].speed.bytes_per_second, first[0].speed.bytes_per_second);
  // And again, which is no news.
  const int probes = CountProbes([&] { AdvanceAndTick(LinkMeter::kThird); });
  EXPECT_GT(probes, 0);
  EXPECT_THAT(PollSender(), IsEmpty());
}

TEST_F(MeasuredLinkTest, KvGoesFirst) {
  Pair();
  OpenAndStart(3);
  network_.hold_landings = true;
  SendAllLayers(3);
  network_.RunUntilIdle();
  EXPECT_EQ(CountProbes([&] { AdvanceAndTick(LinkMeter::kSecond); }), 0);
  network_.hold_landings = false;
  network_.RunUntilIdle();
  EXPECT_GT(CountProbes([&] { AdvanceAndTick(absl::ZeroDuration()); }), 0);
}

TEST_F(MeasuredLinkTest, OneLinkAtATime) {
  Pair();
  const auto another_transport = network_.CreateTransport(/*listen=*/true);
  KvMemory another_memory(kLayers, kPoolBlocks, kPage);
  const auto another = *Receiver::Create(
      another_transport.get(),
      Options(another_memory, v1::WORKER_ROLE_DECODE, kDecode + 1));
  ASSERT_TRUE(sender_->Pair(another_transport->properties().address).ok());
  network_.RunUntilIdle();
  EXPECT_THAT(Only<LinkMeasured>(PollSender()), SizeIs(1));
  const int of_one = CountProbes([&] { AdvanceAndTick(LinkMeter::kSecond); });
  EXPECT_GT(of_one, 0);
  EXPECT_EQ(CountProbes([&] { AdvanceAndTick(absl::ZeroDuration()); }), of_one);
  EXPECT_EQ(CountProbes([&] { AdvanceAndTick(absl::ZeroDuration()); }), 0);
}

}  // namespace
}  // namespace baton::kv_transfer
