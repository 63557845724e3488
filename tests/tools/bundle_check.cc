// Links what a bundle has (tools/gpu_bundle), and shows that it runs.
#include <string>

#include <glog/logging.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <xxhash.h>
#include <nlohmann/json.hpp>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"

namespace {

TEST(BundleTest, LibrariesAreThere) {
  absl::Mutex mutex;
  absl::flat_hash_map<std::string, int> counts;
  absl::AnyInvocable<void()> count = [&] {
    absl::MutexLock lock(&mutex);
    ++counts[absl::StrCat("of ", nlohmann::json({{"a", 1}}).dump())];
  };
  count();
  EXPECT_THAT(counts, testing::ElementsAre(testing::Pair("of {\"a\":1}", 1)));
  const absl::StatusOr<int> none = absl::NotFoundError("nothing");
  EXPECT_FALSE(none.ok());
  EXPECT_NE(XXH3_64bits("baton", 5), 0u);
  EXPECT_GT(absl::Now(), absl::UnixEpoch());
  // Its stack trace is what needs libunwind.
  EXPECT_DEATH(LOG(FATAL) << "the end", "the end");
}

}  // namespace
