#include "scheduling/block_pool.h"

#include <algorithm>
#include <optional>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace baton::scheduling {
namespace {

TEST(BlockPoolTest, GivesDistinctBlocksAndTakesThemBack) {
  BlockPool pool(8);
  {
    std::optional<PooledBlocks> a = pool.Allocate(5);
    ASSERT_TRUE(a.has_value());
    const std::set<BlockId> ids(a->ids().begin(), a->ids().end());
    EXPECT_EQ(ids.size(), 5u);
    EXPECT_EQ(pool.num_free(), 3);
    EXPECT_EQ(pool.num_in_use(), 5);
    pool.CheckInvariants();
  }
  EXPECT_EQ(pool.num_free(), 8);
  pool.CheckInvariants();
}

TEST(BlockPoolTest, AllocatesAllOrNothing) {
  BlockPool pool(4);
  std::optional<PooledBlocks> a = pool.Allocate(3);
  EXPECT_FALSE(pool.Allocate(2).has_value());
  EXPECT_EQ(pool.num_free(), 1);
  EXPECT_TRUE(pool.Allocate(0).has_value());
}

TEST(BlockPoolTest, SharedBlocksStayUntilTheLastHolderGoes) {
  BlockPool pool(4);
  std::optional<PooledBlocks> a = pool.Allocate(3);
  PooledBlocks shared = a->Share(2);
  a->Release();
  EXPECT_EQ(pool.num_in_use(), 2);
  pool.CheckInvariants();
  PooledBlocks moved = std::move(shared);
  EXPECT_EQ(shared.size(), 0);  // NOLINT: a moved-from holder is empty
  EXPECT_EQ(pool.num_in_use(), 2);
  moved.Release();
  EXPECT_EQ(pool.num_free(), 4);
}

TEST(BlockPoolTest, AppendedBlocksAreHeldByOne) {
  BlockPool pool(4);
  PooledBlocks none;
  none.Append(PooledBlocks());
  EXPECT_EQ(none.size(), 0);
  PooledBlocks a = *pool.Allocate(2);
  PooledBlocks b = a.Share(1);
  b.Append(*pool.Allocate(1));
  EXPECT_EQ(b.size(), 2);
  EXPECT_EQ(b.ids()[0], a.ids()[0]);
  EXPECT_EQ(pool.num_in_use(), 3);
  none.Append(std::move(b));
  EXPECT_EQ(none.size(), 2);
  EXPECT_EQ(pool.references(a.ids()[0]), 2);
  a.Release();
  EXPECT_EQ(pool.num_in_use(), 2);
  pool.CheckInvariants();
}

TEST(BlockPoolTest, MoveAssignmentReleasesWhatWasHeld) {
  BlockPool pool(4);
  PooledBlocks a = *pool.Allocate(2);
  PooledBlocks b = *pool.Allocate(1);
  a = std::move(b);
  EXPECT_EQ(a.size(), 1);
  EXPECT_EQ(pool.num_in_use(), 1);
}

// How long the runs of neighbours are.
std::vector<int32_t> FreeRuns(const std::set<BlockId>& free) {
  std::vector<int32_t> runs;
  for (const BlockId block : free) {
    if (!free.contains(block - 1)) runs.push_back(0);
    ++runs.back();
  }
  return runs;
}

TEST(BlockPoolTest, TakesTheSmallestRunThatHoldsThemAll) {
  BlockPool pool(20);
  PooledBlocks all = *pool.AllocateInRuns(20);
  EXPECT_EQ(all.ids().front(), 0);
  // Free: 0 to 3, 6 and 7, 10 to 12, 15 to 19.
  PooledBlocks gaps = pool.Hold({4, 5, 8, 9, 13, 14});
  all.Release();
  const auto ids = [](const PooledBlocks& blocks) {
    return std::vector<BlockId>(blocks.ids().begin(), blocks.ids().end());
  };
  PooledBlocks three = *pool.AllocateInRuns(3);
  EXPECT_EQ(ids(three), (std::vector<BlockId>{10, 11, 12}));
  // No run has six: the longest, and one for the rest.
  PooledBlocks six = *pool.AllocateInRuns(6);
  EXPECT_EQ(ids(six), (std::vector<BlockId>{15, 16, 17, 18, 19, 6}));
  PooledBlocks rest = *pool.AllocateInRuns(5);
  EXPECT_EQ(ids(rest), (std::vector<BlockId>{0, 1, 2, 3, 7}));
  EXPECT_FALSE(pool.AllocateInRuns(1).has_value());
  EXPECT_EQ(pool.AllocateInRuns(0)->size(), 0);
  pool.CheckInvariants();
}

TEST(BlockPoolTest, RunsAreAsFewAsTheLongestMakeThem) {
  const uint32_t seed = 20261126;
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  constexpr int32_t kBlocks = 96;
  BlockPool pool(kBlocks);
  std::set<BlockId> free;
  for (BlockId block = 0; block < kBlocks; ++block) free.insert(block);
  std::vector<PooledBlocks> held;
  for (int i = 0; i < 3000; ++i) {
    if (random() % 2 == 0 && !held.empty()) {
      const size_t which = random() % held.size();
      free.insert(held[which].ids().begin(), held[which].ids().end());
      held.erase(held.begin() + which);
      continue;
    }
    const auto count = static_cast<int32_t>(random() % 24);
    std::vector<int32_t> longest = FreeRuns(free);
    std::sort(longest.rbegin(), longest.rend());
    std::optional<PooledBlocks> got = pool.AllocateInRuns(count);
    ASSERT_EQ(got.has_value(), count <= static_cast<int32_t>(free.size()));
    if (!got.has_value()) continue;
    // Each block is free before, and none afterwards.
    int32_t runs = 0;
    for (size_t k = 0; k < got->ids().size(); ++k) {
      const BlockId block = got->ids()[k];
      ASSERT_EQ(free.erase(block), 1u) << block;
      runs += k == 0 || got->ids()[k - 1] + 1 != block;
    }
    int32_t least = 0;
    for (int32_t left = count; left > 0; ++least) left -= longest[least];
    EXPECT_EQ(runs, least);
    held.push_back(*std::move(got));
    pool.CheckInvariants();
  }
}

TEST(BlockPoolTest, RandomUseKeepsTheInvariants) {
  const uint32_t seed = 20261121;
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  BlockPool pool(64);
  std::vector<PooledBlocks> held;
  for (int i = 0; i < 5000; ++i) {
    switch (random() % 3) {
      case 0:
        if (auto got = pool.Allocate(static_cast<int32_t>(random() % 12))) {
          held.push_back(*std::move(got));
        }
        break;
      case 1:
        if (!held.empty()) {
          const PooledBlocks& from = held[random() % held.size()];
          held.push_back(
              from.Share(static_cast<int32_t>(random() % (from.size() + 1))));
        }
        break;
      default:
        if (!held.empty()) {
          std::swap(held[random() % held.size()], held.back());
          held.pop_back();
        }
    }
    pool.CheckInvariants();
    std::set<BlockId> in_use;
    for (const PooledBlocks& blocks : held) {
      in_use.insert(blocks.ids().begin(), blocks.ids().end());
    }
    ASSERT_EQ(pool.num_in_use(), static_cast<int32_t>(in_use.size()));
  }
  held.clear();
  EXPECT_EQ(pool.num_free(), 64);
}

TEST(BlockPoolDeathTest, ReleasingAPoolInUseIsABug) {
  EXPECT_DEATH(
      {
        auto pool = std::make_unique<BlockPool>(2);
        PooledBlocks held = *pool->Allocate(1);
        pool.reset();
      },
      "still held");
}

}  // namespace
}  // namespace baton::scheduling
