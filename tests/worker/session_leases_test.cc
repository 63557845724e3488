#include "worker/session_leases.h"

#include <gtest/gtest.h>

#include "tests/support/manual_clock.h"

namespace baton::worker {
namespace {

TEST(SessionLeasesTest, LivesWhileItIsRenewed) {
  test::ManualClock clock;
  SessionLeases leases(&clock);
  EXPECT_EQ(leases.Until(1), absl::InfinitePast());
  leases.Open(1, 2000);
  EXPECT_EQ(leases.Until(1), clock.Now() + absl::Seconds(2));
  clock.Advance(absl::Seconds(1));
  EXPECT_EQ(leases.Until(1), clock.Now() + absl::Seconds(1));
  leases.Renew(1);
  EXPECT_EQ(leases.Until(1), clock.Now() + absl::Seconds(2));
  leases.Close(1);
  EXPECT_EQ(leases.Until(1), absl::InfinitePast());
  leases.Renew(1);
  EXPECT_EQ(leases.Until(1), absl::InfinitePast());
}

TEST(SessionLeasesTest, LengthsAreBounded) {
  test::ManualClock clock;
  SessionLeases leases(&clock);
  leases.Open(1, 0);
  EXPECT_EQ(leases.Until(1), clock.Now() + absl::Seconds(5));
  leases.Open(1, 1);
  EXPECT_EQ(leases.Until(1), clock.Now() + absl::Seconds(1));
  leases.Open(1, UINT32_MAX);
  EXPECT_EQ(leases.Until(1), clock.Now() + absl::Minutes(10));
}

}  // namespace
}  // namespace baton::worker
