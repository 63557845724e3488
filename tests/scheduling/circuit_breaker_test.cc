#include "scheduling/circuit_breaker.h"

#include <gtest/gtest.h>

namespace baton::scheduling {
namespace {

using State = CircuitBreaker::State;

class CircuitBreakerTest : public testing::Test {
 protected:
  void FailThrice() {
    for (int i = 0; i < 3; ++i) breaker_.Failed(now_);
  }
  void Wait(absl::Duration d) { now_ += d; }

  absl::Time now_ = absl::UnixEpoch();
  CircuitBreaker breaker_;
};

TEST_F(CircuitBreakerTest, OneBadMomentShutsNobodyOut) {
  breaker_.Failed(now_);
  breaker_.Failed(now_);
  EXPECT_TRUE(breaker_.Allows(now_));
  breaker_.Succeeded();
  breaker_.Failed(now_);
  breaker_.Failed(now_);
  EXPECT_EQ(breaker_.state(now_), State::kClosed);
}

TEST_F(CircuitBreakerTest, FailuresFarApartDoNotCountTogether) {
  for (int i = 0; i < 10; ++i) {
    breaker_.Failed(now_);
    Wait(absl::Seconds(6));
  }
  EXPECT_TRUE(breaker_.Allows(now_));
}

TEST_F(CircuitBreakerTest, ProbesOnceAndCloses) {
  FailThrice();
  EXPECT_EQ(breaker_.state(now_), State::kOpen);
  EXPECT_FALSE(breaker_.Allows(now_));
  EXPECT_EQ(breaker_.NextDue(now_), now_ + absl::Seconds(1));
  Wait(absl::Seconds(1));
  EXPECT_EQ(breaker_.state(now_), State::kHalfOpen);
  ASSERT_TRUE(breaker_.Allows(now_));
  breaker_.Sent(now_);
  EXPECT_FALSE(breaker_.Allows(now_));
  EXPECT_EQ(breaker_.state(now_), State::kHalfOpen);
  breaker_.Succeeded();
  EXPECT_EQ(breaker_.state(now_), State::kClosed);
  EXPECT_TRUE(breaker_.Allows(now_));
}

TEST_F(CircuitBreakerTest, BacksOffWhileProbesFail) {
  FailThrice();
  absl::Duration open = absl::Seconds(1);
  for (int i = 0; i < 8; ++i) {
    Wait(open);
    ASSERT_TRUE(breaker_.Allows(now_)) << i;
    breaker_.Sent(now_);
    breaker_.Failed(now_);
    open = std::min(2 * open, absl::Seconds(30));
    EXPECT_EQ(breaker_.NextDue(now_), now_ + open);
  }
  EXPECT_EQ(open, absl::Seconds(30));
}

TEST_F(CircuitBreakerTest, LateFailuresDoNotProlong) {
  FailThrice();
  Wait(absl::Milliseconds(900));
  breaker_.Failed(now_);
  Wait(absl::Milliseconds(100));
  EXPECT_TRUE(breaker_.Allows(now_));
}

TEST_F(CircuitBreakerTest, ALostProbeIsFollowedByAnother) {
  FailThrice();
  Wait(absl::Seconds(1));
  breaker_.Sent(now_);
  Wait(absl::Seconds(1));
  EXPECT_TRUE(breaker_.Allows(now_));
}

}  // namespace
}  // namespace baton::scheduling
