#include "worker/session_leases.h"

#include <gtest/gtest.h>

namespace baton::worker {
namespace {

class HandClock final : public Clock {
 public:
  absl::Time Now() const override { return now; }
  absl::Time now = absl::UnixEpoch();
};

TEST(SessionLeasesTest, LivesWhileItIsRenewed) {
  HandClock clock;
  SessionLeases leases(&clock);
  EXPECT_EQ(leases.Until(1), absl::InfinitePast());
  leases.Open(1, 2000);
  EXPECT_EQ(leases.Until(1), clock.now + absl::Seconds(2));
  clock.now += absl::Seconds(1);
  EXPECT_EQ(leases.Until(1), clock.now + absl::Seconds(1));
  leases.Renew(1);
  EXPECT_EQ(leases.Until(1), clock.now + absl::Seconds(2));
  leases.Close(1);
  EXPECT_EQ(leases.Until(1), absl::InfinitePast());
  leases.Renew(1);
  EXPECT_EQ(leases.Until(1), absl::InfinitePast());
}

TEST(SessionLeasesTest, LengthsAreBounded) {
  HandClock clock;
  SessionLeases leases(&clock);
  leases.Open(1, 0);
  EXPECT_EQ(leases.Until(1), clock.now + absl::Seconds(5));
  leases.Open(1, 1);
  EXPECT_EQ(leases.Until(1), clock.now + absl::Seconds(1));
  leases.Open(1, UINT32_MAX);
  EXPECT_EQ(leases.Until(1), clock.now + absl::Minutes(10));
}

}  // namespace
}  // namespace baton::worker
