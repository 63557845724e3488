#include "scheduling/block_pool.h"

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
