#include "planner/gap_histogram.h"

#include <cmath>
#include <vector>

#include <gtest/gtest.h>

namespace baton::planner {
namespace {

TEST(GapHistogramTest, HasNoPercentilesOfNothing) {
  EXPECT_TRUE(std::isnan(GapHistogram().Milliseconds().p50));
}

TEST(GapHistogramTest, IsWithinOnePercentOfThePercentiles) {
  GapHistogram gaps;
  std::vector<double> milliseconds;
  for (int i = 1; i <= 1000; ++i) {
    gaps.Add(1e-3 * i, 1);
    milliseconds.push_back(i);
  }
  const workload::Percentiles exact = workload::PercentilesOf(milliseconds);
  const workload::Percentiles p = gaps.Milliseconds();
  EXPECT_NEAR(p.p50, exact.p50, 0.011 * exact.p50);
  EXPECT_NEAR(p.p90, exact.p90, 0.011 * exact.p90);
  EXPECT_NEAR(p.p99, exact.p99, 0.011 * exact.p99);
  EXPECT_DOUBLE_EQ(p.max, exact.max);
  EXPECT_NEAR(p.mean, exact.mean, 1e-9);
}

TEST(GapHistogramTest, ARunIsItsSteps) {
  const StepRun run = {.start = 5, .first = 0.01, .growth = 1e-4, .count = 300};
  GapHistogram together, alone;
  together.AddRun(run, 7);
  for (int64_t i = 0; i < run.count; ++i) alone.Add(run.Duration(i), 7);
  EXPECT_EQ(together.count(), alone.count());
  const workload::Percentiles a = together.Milliseconds();
  const workload::Percentiles b = alone.Milliseconds();
  // One step may lie at the border of two classes.
  EXPECT_NEAR(a.p50, b.p50, 0.011 * b.p50);
  EXPECT_NEAR(a.p99, b.p99, 0.011 * b.p99);
  EXPECT_DOUBLE_EQ(a.max, b.max);
  EXPECT_NEAR(a.mean, b.mean, 1e-9 * b.mean);
}

TEST(GapHistogramTest, SumsWithOthers) {
  GapHistogram a, b;
  a.Add(0.001, 10);
  b.Add(0.1, 30);
  a.Merge(b);
  EXPECT_EQ(a.count(), 40);
  EXPECT_NEAR(a.Milliseconds().p50, 100, 1.1);
  EXPECT_NEAR(a.Milliseconds().mean, 75.25, 1e-9);
}

}  // namespace
}  // namespace baton::planner
