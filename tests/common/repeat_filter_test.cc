#include "common/repeat_filter.h"

#include <string>

#include <gtest/gtest.h>

namespace baton {
namespace {

TEST(RepeatFilterTest, LetsATextThroughOnceAMinute) {
  RepeatFilter filter;
  const absl::Time start = absl::UnixEpoch();
  EXPECT_TRUE(filter.IsNews("no certificate", start));
  EXPECT_FALSE(filter.IsNews("no certificate", start + absl::Seconds(59)));
  EXPECT_TRUE(filter.IsNews("another CA", start + absl::Seconds(59)));
  EXPECT_TRUE(filter.IsNews("no certificate", start + absl::Seconds(60)));
  EXPECT_FALSE(filter.IsNews("no certificate", start + absl::Seconds(61)));
}

TEST(RepeatFilterTest, ForgetsRatherThanGrow) {
  RepeatFilter filter;
  for (int i = 0; i < 64; ++i) {
    EXPECT_TRUE(filter.IsNews(std::to_string(i), absl::UnixEpoch()));
  }
  EXPECT_FALSE(filter.IsNews("63", absl::UnixEpoch()));
  EXPECT_TRUE(filter.IsNews("one more", absl::UnixEpoch()));
  EXPECT_TRUE(filter.IsNews("63", absl::UnixEpoch()));
  EXPECT_FALSE(filter.IsNews("one more", absl::UnixEpoch()));
}

}  // namespace
}  // namespace baton
