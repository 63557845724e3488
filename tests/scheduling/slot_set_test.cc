#include "scheduling/slot_set.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <random>
#include <set>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace baton::scheduling::slot_set_test {
namespace {

using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::IsEmpty;
using Added = SlotSetPool::Added;

constexpr int64_t kAnyRoom = std::numeric_limits<int64_t>::max();

TEST(SlotSetTest, KeepsMembersSortedAndOnce) {
  SlotSetPool pool;
  SlotSet set;
  EXPECT_TRUE(set.empty());
  EXPECT_THAT(pool.View(set), IsEmpty());
  EXPECT_EQ(pool.Add(&set, 7, 0), Added::kYes);
  EXPECT_EQ(pool.Add(&set, 2, 0), Added::kYes);
  EXPECT_EQ(pool.Add(&set, 7, 0), Added::kThere);
  EXPECT_EQ(pool.Add(&set, 0, 0), Added::kYes);
  EXPECT_THAT(pool.View(set), ElementsAre(0, 2, 7));
  EXPECT_FALSE(pool.Remove(&set, 3));
  EXPECT_TRUE(pool.Remove(&set, 2));
  EXPECT_THAT(pool.View(set), ElementsAre(0, 7));
  EXPECT_TRUE(pool.Remove(&set, 0));
  EXPECT_TRUE(pool.Remove(&set, 7));
  EXPECT_TRUE(set.empty());
  EXPECT_EQ(pool.bytes(), 0);
}

TEST(SlotSetTest, WithoutRoomNothingChanges) {
  SlotSetPool pool;
  SlotSet set;
  for (Slot slot : {1, 2, 3}) EXPECT_EQ(pool.Add(&set, slot, 0), Added::kYes);
  EXPECT_EQ(pool.Add(&set, 4, 10), Added::kNoRoom);
  EXPECT_THAT(pool.View(set), ElementsAre(1, 2, 3));
  EXPECT_EQ(pool.bytes(), 0);
  EXPECT_EQ(pool.Add(&set, 3, 0), Added::kThere);
  for (Slot slot : {4, 5, 6, 7, 8}) {
    EXPECT_EQ(pool.Add(&set, slot, kAnyRoom), Added::kYes);
  }
  const int64_t bytes = pool.bytes();
  EXPECT_EQ(pool.Add(&set, 9, 10), Added::kNoRoom);
  EXPECT_EQ(pool.bytes(), bytes);
  EXPECT_THAT(pool.View(set), ElementsAre(1, 2, 3, 4, 5, 6, 7, 8));
}

TEST(SlotSetTest, Contains) {
  SlotSetPool pool;
  SlotSet few, more, many, other, none;
  for (Slot slot : {2, 4}) pool.Add(&few, slot, kAnyRoom);
  for (Slot slot : {1, 2, 4}) pool.Add(&more, slot, kAnyRoom);
  for (Slot slot = 0; slot < 100; slot += 2) pool.Add(&many, slot, kAnyRoom);
  for (Slot slot : {2, 5}) pool.Add(&other, slot, kAnyRoom);
  EXPECT_TRUE(pool.Contains(few, few));
  EXPECT_TRUE(pool.Contains(more, few));
  EXPECT_FALSE(pool.Contains(few, more));
  EXPECT_TRUE(pool.Contains(many, few));
  EXPECT_FALSE(pool.Contains(many, more));
  EXPECT_FALSE(pool.Contains(few, other)) << "as many, but others";
  EXPECT_TRUE(pool.Contains(none, none));
  EXPECT_TRUE(pool.Contains(few, none));
  EXPECT_FALSE(pool.Contains(none, few));
}

// Many sets grow and shrink at random, and are those of the standard library.
TEST(SlotSetTest, IsASet) {
  std::mt19937 random(1);
  SlotSetPool pool;
  constexpr size_t kSets = 20;
  std::vector<SlotSet> sets(kSets);
  std::vector<std::set<Slot>> model(kSets);
  int64_t most_bytes = 0;
  for (int i = 0; i < 20000; ++i) {
    const size_t at = random() % kSets;
    // Some grow to a hundred members and shrink to none.
    const bool grows = (i / 2000) % 2 == 0;
    const auto slot = static_cast<Slot>(random() % 100);
    if (random() % 4 != 0 ? grows : !grows) {
      EXPECT_EQ(pool.Add(&sets[at], slot, kAnyRoom),
                model[at].insert(slot).second ? Added::kYes : Added::kThere);
    } else {
      EXPECT_EQ(pool.Remove(&sets[at], slot), model[at].erase(slot) == 1);
    }
    ASSERT_THAT(pool.View(sets[at]), ElementsAreArray(model[at]));
    ASSERT_EQ(sets[at].empty(), model[at].empty());
    most_bytes = std::max(most_bytes, pool.bytes());
  }
  EXPECT_GT(most_bytes, 20 * 2 * 50);
  EXPECT_LT(most_bytes, 20 * (4 * 100 + 100));
  for (size_t i = 0; i < kSets; ++i) {
    for (Slot slot : model[i]) EXPECT_TRUE(pool.Remove(&sets[i], slot));
  }
  EXPECT_LE(pool.bytes(), 20 * 64) << "arrays were given back";
}

}  // namespace
}  // namespace baton::scheduling::slot_set_test
