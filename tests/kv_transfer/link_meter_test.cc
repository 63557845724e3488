#include "kv_transfer/link_meter.h"

#include <algorithm>
#include <optional>

#include <gtest/gtest.h>

namespace baton::kv_transfer {
namespace {

constexpr uint64_t kMax = LinkProbe::kMaxPayloadBytes;
constexpr double kGigabyte = 1e9;
constexpr double kMegabyte = 1e6;

// A meter, and a link that takes 20 us and bytes by bandwidth.
class LinkMeterTest : public testing::Test {
 protected:
  // One measurement of a link of this bandwidth, whose messages take longer by
  // `late`.
  void Measure(double bytes_per_second,
               absl::Duration late = absl::ZeroDuration()) {
    ASSERT_FALSE(meter_.Measures(now_));
    ASSERT_TRUE(meter_.Due(now_));
    std::optional<LinkMeter::Send> send = meter_.Start(now_);
    while (send.has_value()) {
      ASSERT_TRUE(meter_.Measures(now_));
      now_ += absl::Microseconds(20) + late +
              absl::Seconds(static_cast<double>(send->payload_bytes) /
                            bytes_per_second);
      send = meter_.OnReply(Answer(*send), now_);
    }
    ASSERT_FALSE(meter_.Measures(now_));
  }
  static wire::ProbeReply Answer(const LinkMeter::Send& send) {
    return {send.message.probe, send.message.sequence};
  }
  void ExpectDueIn(absl::Duration wait) {
    EXPECT_FALSE(meter_.Due(now_ + wait - absl::Nanoseconds(1)));
    EXPECT_TRUE(meter_.Due(now_ + wait));
    now_ += wait;
  }
  void ExpectSpeed(double bytes_per_second) {
    const std::optional<LinkSpeed> speed = meter_.speed();
    ASSERT_TRUE(speed.has_value());
    EXPECT_NEAR(speed->bytes_per_second / bytes_per_second, 1, 0.02);
  }

  absl::Time now_ = absl::UnixEpoch();
  LinkMeter meter_{kMax, now_};
};

TEST_F(LinkMeterTest, MeasuresSoonAgainThenNowAndThen) {
  EXPECT_EQ(meter_.speed(), std::nullopt);
  Measure(kGigabyte);
  ExpectSpeed(kGigabyte);
  ExpectDueIn(LinkMeter::kSecond);
  Measure(kGigabyte);
  ExpectDueIn(LinkMeter::kThird);
  for (int i = 0; i < 5; ++i) {
    Measure(kGigabyte);
    ExpectDueIn(LinkMeter::kEvery);
  }
}

// All messages of the first one were held up, as by other threads on few CPUs.
TEST_F(LinkMeterTest, WhatWasHeldUpAtFirstIsPutRight) {
  Measure(3 * kMegabyte, absl::Milliseconds(4));
  ExpectSpeed(3 * kMegabyte);
  ExpectDueIn(LinkMeter::kSecond);
  Measure(kGigabyte);
  ExpectSpeed(kGigabyte);
  EXPECT_EQ(meter_.speed()->latency, absl::Microseconds(10));
}

TEST_F(LinkMeterTest, WhatIsHeldUpLaterChangesNothing) {
  Measure(kGigabyte);
  for (size_t i = 1; i < LinkMeter::kRemembered; ++i) {
    now_ += LinkMeter::kEvery;
    Measure(kMegabyte, absl::Milliseconds(4));
    ExpectSpeed(kGigabyte);
    EXPECT_EQ(meter_.speed()->latency, absl::Microseconds(10));
  }
}

TEST_F(LinkMeterTest, ALinkThatGetsSlowerIsKnownAfterAFew) {
  for (int i = 0; i < 5; ++i) {
    now_ += LinkMeter::kEvery;
    Measure(kGigabyte);
  }
  for (size_t i = 1; i < LinkMeter::kRemembered; ++i) {
    now_ += LinkMeter::kEvery;
    Measure(kMegabyte);
    ExpectSpeed(kGigabyte);
  }
  now_ += LinkMeter::kEvery;
  Measure(kMegabyte);
  ExpectSpeed(kMegabyte);
}

TEST_F(LinkMeterTest, NewsIsWhatChangedByAQuarter) {
  EXPECT_EQ(meter_.TakeNews(), std::nullopt);
  Measure(100 * kMegabyte);
  ASSERT_TRUE(meter_.TakeNews().has_value());
  EXPECT_EQ(meter_.TakeNews(), std::nullopt);
  now_ += LinkMeter::kEvery;
  Measure(120 * kMegabyte);
  EXPECT_EQ(meter_.TakeNews(), std::nullopt);
  // Of what was told, not of what was measured last.
  now_ += LinkMeter::kEvery;
  Measure(130 * kMegabyte);
  const std::optional<LinkSpeed> faster = meter_.TakeNews();
  ASSERT_TRUE(faster.has_value());
  EXPECT_NEAR(faster->bytes_per_second / kMegabyte, 130, 2);
  for (size_t i = 0; i < LinkMeter::kRemembered; ++i) {
    now_ += LinkMeter::kEvery;
    Measure(90 * kMegabyte);
  }
  ASSERT_TRUE(meter_.TakeNews().has_value());
  EXPECT_EQ(meter_.TakeNews(), std::nullopt);
}

TEST_F(LinkMeterTest, LatencyIsNewsToo) {
  Measure(kGigabyte, absl::Milliseconds(1));
  ASSERT_TRUE(meter_.TakeNews().has_value());
  now_ += LinkMeter::kEvery;
  Measure(kGigabyte);
  const std::optional<LinkSpeed> news = meter_.TakeNews();
  ASSERT_TRUE(news.has_value());
  EXPECT_EQ(news->latency, absl::Microseconds(10));
}

TEST_F(LinkMeterTest, NoAnswersNoResultAndAnotherTry) {
  const LinkMeter::Send lost = meter_.Start(now_);
  now_ += LinkProbe::kPatience;
  EXPECT_FALSE(meter_.Measures(now_));
  EXPECT_EQ(meter_.speed(), std::nullopt);
  // The answer comes after all, to nobody, and to the next measurement.
  EXPECT_EQ(meter_.OnReply(Answer(lost), now_), std::nullopt);
  ExpectDueIn(LinkMeter::kSecond);
  const LinkMeter::Send second = meter_.Start(now_);
  EXPECT_EQ(meter_.OnReply(Answer(lost), now_), std::nullopt);
  EXPECT_NE(meter_.OnReply(Answer(second), now_), std::nullopt);
  EXPECT_EQ(meter_.OnReply(Answer(second), now_), std::nullopt);
}

// One that ends without a result takes no other's place.
TEST_F(LinkMeterTest, ResultsOutliveWhatHasNone) {
  Measure(kGigabyte);
  for (size_t i = 0; i < 2 * LinkMeter::kRemembered; ++i) {
    now_ += LinkMeter::kEvery;
    meter_.Start(now_);
    now_ += LinkProbe::kPatience;
    EXPECT_FALSE(meter_.Measures(now_));
    ExpectSpeed(kGigabyte);
  }
}

}  // namespace
}  // namespace baton::kv_transfer
