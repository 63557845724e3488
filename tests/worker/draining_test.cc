#include "worker/draining.h"

#include <gtest/gtest.h>

namespace baton::worker {
namespace {

constexpr absl::Time kStart = absl::FromUnixSeconds(1000);

TEST(DrainingTest, NobodyAsked) {
  Draining draining(absl::ZeroDuration());
  EXPECT_FALSE(draining.requested());
  EXPECT_FALSE(draining.IsOver(kStart));
  EXPECT_FALSE(draining.IsOver(kStart + absl::Hours(1)));
}

TEST(DrainingTest, TimeBeginsWhenTheLoopHearsOfIt) {
  Draining draining(absl::Seconds(5));
  EXPECT_FALSE(draining.IsOver(kStart));
  draining.Request();
  EXPECT_TRUE(draining.requested());
  EXPECT_FALSE(draining.IsOver(kStart + absl::Seconds(60)));
  EXPECT_FALSE(draining.IsOver(kStart + absl::Seconds(64)));
  draining.Request();  // once more changes nothing
  EXPECT_TRUE(draining.IsOver(kStart + absl::Seconds(65)));
  EXPECT_TRUE(draining.IsOver(kStart + absl::Seconds(66)));
}

TEST(DrainingTest, NoPatienceAtAll) {
  Draining draining(absl::ZeroDuration());
  draining.Request();
  EXPECT_TRUE(draining.IsOver(kStart));
}

}  // namespace
}  // namespace baton::worker
