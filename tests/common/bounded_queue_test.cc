#include "common/bounded_queue.h"

#include <memory>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace baton {
namespace {

using ::testing::ElementsAre;

constexpr absl::Duration kLong = absl::Seconds(30);

TEST(BoundedQueueTest, RefusesWhenFullAndKeepsTheItem) {
  BoundedQueue<std::unique_ptr<int>> queue(1);
  EXPECT_TRUE(queue.TryPush(std::make_unique<int>(1)));
  auto second = std::make_unique<int>(2);
  EXPECT_FALSE(queue.TryPush(std::move(second)));
  ASSERT_NE(second, nullptr);
  EXPECT_TRUE(queue.PushUnbounded(std::move(second)));
  EXPECT_EQ(queue.DrainFor(absl::ZeroDuration()).size(), 2u);
}

TEST(BoundedQueueTest, DrainsInOrder) {
  BoundedQueue<int> queue(8);
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(queue.TryPush(int{i}));
  EXPECT_THAT(queue.DrainFor(kLong), ElementsAre(0, 1, 2));
  EXPECT_TRUE(queue.DrainFor(absl::ZeroDuration()).empty());
}

TEST(BoundedQueueTest, AWakeBeforeTheWaitIsNotLost) {
  BoundedQueue<int> queue(8);
  queue.Wake();
  const absl::Time start = absl::Now();
  EXPECT_TRUE(queue.DrainFor(kLong).empty());
  EXPECT_LT(absl::Now() - start, kLong);
}

TEST(BoundedQueueTest, CloseWakesTheReaderAndRefusesWriters) {
  BoundedQueue<int> queue(8);
  std::thread reader([&] { EXPECT_TRUE(queue.DrainFor(kLong).empty()); });
  queue.Close();
  reader.join();
  EXPECT_FALSE(queue.TryPush(1));
  EXPECT_FALSE(queue.PushUnbounded(1));
}

TEST(BoundedQueueTest, TellsWhoWaitsElsewhere) {
  int told = 0;
  BoundedQueue<int> queue(2, [&] { ++told; });
  EXPECT_TRUE(queue.TryPush(1));
  EXPECT_TRUE(queue.TryPush(2));
  EXPECT_EQ(told, 2);
  EXPECT_FALSE(queue.TryPush(3));
  EXPECT_EQ(told, 2);
  EXPECT_TRUE(queue.PushUnbounded(4));
  queue.Wake();
  EXPECT_EQ(told, 4);
}

TEST(BoundedQueueTest, ManyWritersLoseNothing) {
  BoundedQueue<int> queue(16);
  constexpr int kWriters = 4, kItems = 2000;
  std::vector<std::thread> writers;
  for (int w = 0; w < kWriters; ++w) {
    writers.emplace_back([&, w] {
      for (int i = 0; i < kItems; ++i) {
        int item = w * kItems + i;
        while (!queue.TryPush(std::move(item))) std::this_thread::yield();
      }
    });
  }
  std::vector<bool> seen(kWriters * kItems, false);
  int count = 0;
  while (count < kWriters * kItems) {
    for (int item : queue.DrainFor(kLong)) {
      EXPECT_FALSE(seen[item]);
      seen[item] = true;
      ++count;
    }
  }
  for (std::thread& writer : writers) writer.join();
}

}  // namespace
}  // namespace baton
