#include "workload/goodput.h"

#include <cmath>

#include <gtest/gtest.h>

namespace baton::workload {
namespace {

TEST(TargetsTest, BothAreToBeMet) {
  const Targets targets = {absl::Milliseconds(100), absl::Milliseconds(10)};
  EXPECT_TRUE(targets.Met(absl::Milliseconds(100), absl::Milliseconds(10)));
  EXPECT_FALSE(targets.Met(absl::Milliseconds(101), absl::Milliseconds(10)));
  EXPECT_FALSE(targets.Met(absl::Milliseconds(100), absl::Milliseconds(11)));
}

TEST(TargetsTest, WithoutATargetAnythingWillDo) {
  EXPECT_TRUE(Targets().Met(absl::Hours(1), absl::Hours(1)));
  const Targets itl = {absl::ZeroDuration(), absl::Milliseconds(10)};
  EXPECT_TRUE(itl.Met(absl::Hours(1), absl::Milliseconds(1)));
  EXPECT_FALSE(itl.Met(absl::ZeroDuration(), absl::Hours(1)));
}

TEST(PercentilesTest, AreByNearestRank) {
  const Percentiles p = PercentilesOf({4, 1, 3, 2});
  EXPECT_EQ(p.p50, 2);
  EXPECT_EQ(p.p90, 4);
  EXPECT_EQ(p.max, 4);
  EXPECT_EQ(p.mean, 2.5);
  EXPECT_EQ(PercentilesJson(p)["p99"], 4);
  EXPECT_TRUE(std::isnan(PercentilesOf({}).mean));
  EXPECT_TRUE(PercentilesJson(PercentilesOf({}))["mean"].is_null());
}

}  // namespace
}  // namespace baton::workload
