#include "planner/worker_times.h"

#include <algorithm>
#include <random>
#include <vector>

#include <gtest/gtest.h>

namespace baton::planner {
namespace {

TEST(WorkerTimesTest, NobodyIsNextAtFirst) {
  EXPECT_EQ(WorkerTimes(3).next_time(), WorkerTimes::kNever);
  EXPECT_EQ(WorkerTimes(0).next_time(), WorkerTimes::kNever);
}

TEST(WorkerTimesTest, FindsTheFirstAsASearchDoes) {
  std::mt19937_64 random(3);
  const size_t count = 37;
  WorkerTimes times(count);
  std::vector<double> all(count, WorkerTimes::kNever);
  for (int round = 0; round < 5000; ++round) {
    const size_t worker = random() % count;
    all[worker] = random() % 5 == 0 ? WorkerTimes::kNever
                                    : static_cast<double>(random() % 50);
    times.Set(worker, all[worker]);
    const auto first = std::min_element(all.begin(), all.end());
    ASSERT_EQ(times.next_time(), *first);
    ASSERT_EQ(times.next_worker(), static_cast<size_t>(first - all.begin()));
    ASSERT_EQ(times.time(worker), all[worker]);
  }
}

}  // namespace
}  // namespace baton::planner
