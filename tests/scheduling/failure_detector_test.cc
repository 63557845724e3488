#include "scheduling/failure_detector.h"

#include <gtest/gtest.h>

namespace baton::scheduling {
namespace {

constexpr uint64_t kLife = 7;
constexpr absl::Duration kBoth = absl::Milliseconds(1400);

class FailureDetectorTest : public testing::Test {
 protected:
  void Wait(absl::Duration d) { now_ += d; }
  // Silent until it is lost, then back in that life. Returns how long it took
  // to be lost.
  absl::Duration LoseAndRejoin(uint64_t life) {
    const absl::Time lost = detector_.LostAt(now_);
    const absl::Duration silent = lost - now_;
    now_ = lost;
    detector_.Disconnected(/*silent=*/true);
    Wait(absl::Milliseconds(300));
    mistaken_ = detector_.Connected(life, now_);
    return silent;
  }

  absl::Time now_ = absl::UnixEpoch();
  FailureDetector detector_;
  bool mistaken_ = false;
};

TEST_F(FailureDetectorTest, AsksInTimeAndLosesWhoStaysSilent) {
  EXPECT_FALSE(detector_.Connected(kLife, now_));
  EXPECT_EQ(detector_.AskAt(), now_ + absl::Milliseconds(500));
  EXPECT_EQ(detector_.LostAt(now_), now_ + kBoth);
  Wait(absl::Seconds(1));
  detector_.Heard(now_);
  EXPECT_EQ(detector_.AskAt(), now_ + absl::Milliseconds(500));
  EXPECT_EQ(detector_.LostAt(now_), now_ + kBoth);
}

TEST_F(FailureDetectorTest, NobodyIsLostWhoIsNotConnected) {
  EXPECT_EQ(detector_.AskAt(), absl::InfiniteFuture());
  EXPECT_EQ(detector_.LostAt(now_), absl::InfiniteFuture());
  detector_.Connected(kLife, now_);
  detector_.Disconnected(/*silent=*/false);
  detector_.Stalled(absl::Seconds(1), now_);
  EXPECT_EQ(detector_.LostAt(now_), absl::InfiniteFuture());
}

TEST_F(FailureDetectorTest, EachMistakeDoublesThePatience) {
  detector_.Connected(kLife, now_);
  for (const double silent : {1.4, 2.3, 4.1, 7.7, 8.5, 8.5}) {
    EXPECT_EQ(LoseAndRejoin(kLife), absl::Seconds(silent));
    EXPECT_TRUE(mistaken_);
  }
}

TEST_F(FailureDetectorTest, CalmTakesItBack) {
  detector_.Connected(kLife, now_);
  for (int i = 0; i < 3; ++i) LoseAndRejoin(kLife);
  EXPECT_EQ(detector_.patience(now_), absl::Seconds(7.2));
  Wait(absl::Seconds(59));
  EXPECT_EQ(detector_.patience(now_), absl::Seconds(7.2));
  Wait(absl::Seconds(1));
  EXPECT_EQ(detector_.patience(now_), absl::Seconds(3.6));
  // A mistake in between: twice what it is by then.
  detector_.Heard(now_);
  LoseAndRejoin(kLife);
  EXPECT_EQ(detector_.patience(now_), absl::Seconds(7.2));
  Wait(absl::Minutes(3));
  EXPECT_EQ(detector_.patience(now_), absl::Milliseconds(900));
  Wait(absl::Hours(1000));
  EXPECT_EQ(detector_.patience(now_), absl::Milliseconds(900));
}

TEST_F(FailureDetectorTest, ANewLifeWasReallyLost) {
  detector_.Connected(kLife, now_);
  EXPECT_EQ(LoseAndRejoin(kLife + 1), kBoth);
  EXPECT_FALSE(mistaken_);
  EXPECT_EQ(detector_.patience(now_), absl::Milliseconds(900));
}

TEST_F(FailureDetectorTest, AConnectionThatEndsByItselfTeachesNothing) {
  detector_.Connected(kLife, now_);
  detector_.Disconnected(/*silent=*/false);
  EXPECT_FALSE(detector_.Connected(kLife, now_));
  EXPECT_EQ(detector_.patience(now_), absl::Milliseconds(900));
}

TEST_F(FailureDetectorTest, TimeInWhichTheObserverSleptIsNotCounted) {
  detector_.Connected(kLife, now_);
  Wait(absl::Seconds(1));
  detector_.Stalled(absl::Milliseconds(600), now_);
  EXPECT_EQ(detector_.LostAt(now_), now_ + absl::Milliseconds(1000));
}

// What came meanwhile must be read first.
TEST_F(FailureDetectorTest, NobodyIsLostAsTheObserverWakes) {
  detector_.Connected(kLife, now_);
  Wait(absl::Milliseconds(1399));
  detector_.Stalled(absl::Milliseconds(100), now_);
  EXPECT_EQ(detector_.LostAt(now_), now_ + absl::Milliseconds(250));
  // And a long sleep gives nobody more than a life begun anew.
  Wait(absl::Hours(1));
  detector_.Stalled(absl::Hours(2), now_);
  EXPECT_EQ(detector_.LostAt(now_), now_ + kBoth);
}

}  // namespace
}  // namespace baton::scheduling
