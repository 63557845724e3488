#include "common/line_limit.h"

#include <gtest/gtest.h>

namespace baton {
namespace {

TEST(LineLimitTest, SaysHowManyWereLeftOut) {
  LineLimit limit(2);
  const absl::Time start = absl::UnixEpoch() + absl::Seconds(7);
  EXPECT_EQ(limit.Take(start), 0);
  EXPECT_EQ(limit.Take(start), 0);
  EXPECT_EQ(limit.Take(start), std::nullopt);
  EXPECT_EQ(limit.Take(start + absl::Milliseconds(999)), std::nullopt);
  EXPECT_EQ(limit.Take(start + absl::Seconds(1)), 2);
  EXPECT_EQ(limit.Take(start + absl::Seconds(1)), 0);
  EXPECT_EQ(limit.Take(start + absl::Seconds(1.5)), std::nullopt);
  EXPECT_EQ(limit.Take(start + absl::Seconds(9)), 1);
}

}  // namespace
}  // namespace baton
