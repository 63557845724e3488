#include "workload/arrivals.h"

#include <cmath>
#include <vector>

#include <gtest/gtest.h>

namespace baton::workload {
namespace {

// Mean and coefficient of variation of the first gaps.
struct Gaps {
  double mean = 0;
  double variation = 0;
};

Gaps Measure(const ArrivalOptions& options) {
  constexpr int kCount = 200'000;
  Arrivals arrivals(options);
  double last = 0, sum = 0, squares = 0;
  for (int i = 0; i < kCount; ++i) {
    const double at = absl::ToDoubleSeconds(arrivals.Next());
    const double gap = at - last;
    EXPECT_GE(gap, 0);
    last = at;
    sum += gap;
    squares += gap * gap;
  }
  const double mean = sum / kCount;
  return {mean, std::sqrt(squares / kCount - mean * mean) / mean};
}

TEST(ArrivalsTest, ConstantIsEven) {
  Arrivals arrivals({.kind = ArrivalKind::kConstant, .rate = 4});
  for (int i = 1; i < 10; ++i) {
    EXPECT_EQ(arrivals.Next(), absl::Seconds(0.25 * i)) << i;
  }
}

TEST(ArrivalsTest, PoissonHasItsRateAndVariation) {
  const Gaps gaps = Measure({.kind = ArrivalKind::kPoisson, .rate = 20});
  EXPECT_NEAR(gaps.mean, 1.0 / 20, 0.0005);
  EXPECT_NEAR(gaps.variation, 1, 0.02);
}

TEST(ArrivalsTest, BurstsHaveTheRateAndVariationThatWasAsked) {
  for (const double burstiness : {0.5, 1.0, 3.0}) {
    const Gaps gaps = Measure(
        {.kind = ArrivalKind::kBursts, .rate = 5, .burstiness = burstiness});
    EXPECT_NEAR(gaps.mean, 1.0 / 5, 0.006) << burstiness;
    EXPECT_NEAR(gaps.variation / burstiness, 1, 0.05) << burstiness;
  }
}

TEST(ArrivalsTest, TheSameSeedGivesTheSameTimes) {
  const auto first = [](uint64_t seed) {
    return Arrivals({.rate = 1, .seed = seed}).Next();
  };
  EXPECT_EQ(first(3), first(3));
  EXPECT_NE(first(3), first(4));
}

}  // namespace
}  // namespace baton::workload
