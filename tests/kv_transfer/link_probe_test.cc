#include "kv_transfer/link_probe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/kv_transfer/handoff_pair.h"

namespace baton::kv_transfer {
namespace {

using testing::IsEmpty;
using testing::SizeIs;

TEST(LinkProbeTest, MeasuresLatencyThenBandwidth) {
  absl::Time now = absl::UnixEpoch();
  LinkProbe probe(/*payload_bytes=*/1000000, now);
  LinkProbe::Step step = probe.Start();
  EXPECT_EQ(step.first, 0u);
  EXPECT_EQ(step.count, 1u);
  EXPECT_FALSE(step.with_payload);
  // The shortest of the pings counts.
  for (uint32_t i = 0; i < LinkProbe::kPings; ++i) {
    now += absl::Microseconds(i == 2 ? 100 : 300);
    step = probe.OnReply(i, now);
  }
  EXPECT_TRUE(step.with_payload);
  EXPECT_EQ(step.first, LinkProbe::kPings);
  EXPECT_EQ(step.count, LinkProbe::kBursts);
  for (uint32_t i = 0; i < LinkProbe::kBursts; ++i) {
    EXPECT_FALSE(probe.result().has_value());
    now += absl::Milliseconds(1);
    EXPECT_EQ(probe.OnReply(step.first + i, now).count, 0u);
  }
  ASSERT_TRUE(probe.result().has_value());
  EXPECT_EQ(probe.result()->latency, absl::Microseconds(50));
  EXPECT_NEAR(probe.result()->bytes_per_second, 1e9, 1);
}

TEST(LinkProbeTest, ForeignAnswersCountForNothing) {
  const absl::Time now = absl::UnixEpoch();
  LinkProbe probe(1000, now);
  probe.Start();
  EXPECT_EQ(probe.OnReply(1, now).count, 0u);
  EXPECT_EQ(probe.OnReply(LinkProbe::kPings, now).count, 0u);
  for (uint32_t i = 0; i < LinkProbe::kPings; ++i) probe.OnReply(i, now);
  for (int i = 0; i < 100; ++i) {
    probe.OnReply(0, now);
    probe.OnReply(LinkProbe::kPings + LinkProbe::kBursts, now);
  }
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

}  // namespace
}  // namespace baton::kv_transfer
