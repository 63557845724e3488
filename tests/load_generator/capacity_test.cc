#include "load_generator/capacity.h"

#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace baton::load_generator {
namespace {

// A server that carries up to `most` per second.
absl::StatusOr<Capacity> Find(double most, CapacityOptions options,
                              std::vector<double>* tried = nullptr) {
  return FindCapacity(
      options, [&](double rate) -> absl::StatusOr<CapacityTrial> {
        if (tried != nullptr) tried->push_back(rate);
        return CapacityTrial{rate, rate <= most ? 0.99 : 0.4, rate};
      });
}

TEST(CapacityTest, FindsTheRateFromBelowAndAbove) {
  for (const double first : {0.5, 1.0, 40.0, 400.0}) {
    const auto found = Find(37, {.first_rate = first, .max_trials = 20});
    ASSERT_TRUE(found.ok()) << found.status();
    EXPECT_TRUE(found->bounded);
    EXPECT_LE(found->rate, 37);
    EXPECT_GE(found->rate, 37 / 1.05) << first;
  }
}

TEST(CapacityTest, SaysWhenThereWasNoEnd) {
  std::vector<double> tried;
  const auto found = Find(1e9, {.first_rate = 1, .max_trials = 4}, &tried);
  ASSERT_TRUE(found.ok());
  EXPECT_FALSE(found->bounded);
  EXPECT_EQ(found->rate, 8);
  EXPECT_THAT(tried, testing::ElementsAre(1, 2, 4, 8));
  const auto none = Find(0, {.first_rate = 1, .max_trials = 4});
  ASSERT_TRUE(none.ok());
  EXPECT_EQ(none->rate, 0);
  EXPECT_TRUE(none->bounded);
  EXPECT_EQ(none->trials.size(), 4u);
}

TEST(CapacityTest, ATrialThatFailsEndsTheSearch) {
  const auto found =
      FindCapacity({}, [](double) -> absl::StatusOr<CapacityTrial> {
        return absl::CancelledError("interrupted");
      });
  EXPECT_EQ(found.status().code(), absl::StatusCode::kCancelled);
}

}  // namespace
}  // namespace baton::load_generator
