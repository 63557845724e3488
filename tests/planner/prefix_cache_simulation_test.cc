#include "planner/prefix_cache_simulation.h"

#include <map>
#include <random>
#include <set>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "planner/prefix_chains.h"

namespace baton::planner {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::UnorderedElementsAre;
using workload::PlannedRequest;

constexpr int64_t kPlenty = 1 << 30;
constexpr int32_t kAll = 1 << 30;
// An entry is five KV blocks.
constexpr int32_t kEntry = 20;
constexpr int32_t kBlock = 4;

PrefixChains Chains(const std::vector<std::vector<uint64_t>>& prefixes) {
  std::vector<PlannedRequest> requests;
  for (const std::vector<uint64_t>& prefix : prefixes) {
    PlannedRequest request;
    request.prompt_tokens = static_cast<int32_t>(prefix.size()) * kEntry + 1;
    request.prefix = prefix;
    request.prefix_block = kEntry;
    requests.push_back(request);
  }
  return PrefixChains(requests);
}

std::vector<uint64_t> Numbers(const std::vector<Hash128>& names) {
  std::vector<uint64_t> numbers;
  for (const Hash128& name : names) numbers.push_back(name.low);
  return numbers;
}

// A sequence comes, is computed, and goes.
void Serve(PrefixCacheSimulation* cache, uint32_t request) {
  cache->Hold(request, kAll);
  cache->Insert(request);
  cache->Release(request);
}

TEST(PrefixCacheSimulationTest, FindsWhatAnEarlierPromptLeft) {
  const PrefixChains chains = Chains({{1, 2, 3}, {1, 2, 4}, {5}});
  PrefixCacheSimulation cache({kBlock, kPlenty}, &chains);
  EXPECT_EQ(cache.Hold(0, kAll), 0);
  // Not computed yet.
  EXPECT_EQ(cache.CachedTokens(1, kAll), 0);
  cache.Insert(0);
  EXPECT_EQ(cache.CachedTokens(1, kAll), 2 * kEntry);
  cache.Release(0);
  EXPECT_EQ(cache.CachedTokens(0, kAll), 3 * kEntry);
  EXPECT_EQ(cache.CachedTokens(0, 3 * kEntry - 1), 2 * kEntry);
  EXPECT_EQ(cache.CachedTokens(1, kAll), 2 * kEntry);
  EXPECT_EQ(cache.CachedTokens(2, kAll), 0);
  EXPECT_EQ(cache.num_entries(), 3);
  EXPECT_EQ(cache.num_idle(), 3);
}

TEST(PrefixCacheSimulationTest, FindsWholeBlocks) {
  const PrefixChains chains = Chains({{1, 2, 3}, {1, 2, 4}, {1}});
  // An entry of 20 tokens fills one of 16.
  PrefixCacheSimulation cache({16, kPlenty}, &chains);
  Serve(&cache, 0);
  EXPECT_EQ(cache.CachedTokens(1, kAll), 32);
  EXPECT_EQ(cache.Hold(1, kAll), 32);
  EXPECT_EQ(cache.CachedTokens(2, kAll), 16);
  // And none of 24.
  PrefixCacheSimulation larger({24, kPlenty}, &chains);
  Serve(&larger, 0);
  EXPECT_EQ(larger.CachedTokens(2, kAll), 0);
  EXPECT_EQ(larger.CachedTokens(1, kAll), 24);
}

TEST(PrefixCacheSimulationTest, SequencesShareTheBlocksOfWhatTheyHold) {
  const PrefixChains chains = Chains({{1, 2}, {1, 2, 3}, {1, 2, 3}});
  PrefixCacheSimulation cache({kBlock, kPlenty}, &chains);
  Serve(&cache, 0);
  // Idle entries are nobody's yet: to hold them saves nothing.
  EXPECT_EQ(cache.SharedBlocksWith(1, kAll), 0);
  EXPECT_EQ(cache.Hold(1, kAll), 2 * kEntry);
  EXPECT_EQ(cache.shared_blocks(), 0);
  EXPECT_EQ(cache.SharedBlocksWith(2, kAll), 2 * kEntry / kBlock);
  EXPECT_EQ(cache.Hold(2, kAll), 2 * kEntry);
  EXPECT_EQ(cache.shared_blocks(), 2 * kEntry / kBlock);
  cache.Insert(1);
  // The second has computed the third entry, too: it keeps its own block.
  cache.Insert(2);
  EXPECT_EQ(cache.shared_blocks(), 2 * kEntry / kBlock);
  cache.Release(1);
  // The entry stays, and so does the other's block.
  EXPECT_EQ(cache.shared_blocks(), -kEntry / kBlock);
  EXPECT_EQ(cache.num_idle(), 0);
  cache.Release(2);
  EXPECT_EQ(cache.shared_blocks(), 0);
  EXPECT_EQ(cache.num_idle(), 3);
}

TEST(PrefixCacheSimulationTest, TheLongestIdleGoFirstAndTheEndBeforeTheStart) {
  const PrefixChains chains = Chains({{1, 2}, {3, 4}, {5, 6}});
  PrefixCacheSimulation cache({kBlock, 4 * kEntry}, &chains);
  Serve(&cache, 0);
  Serve(&cache, 1);
  // Used again.
  Serve(&cache, 0);
  Serve(&cache, 2);
  EXPECT_EQ(cache.num_entries(), 4);
  EXPECT_EQ(cache.CachedTokens(1, kAll), 0);
  EXPECT_EQ(cache.CachedTokens(0, kAll), 2 * kEntry);
  // One less: the end of the first.
  cache.Fit(3 * kEntry / kBlock);
  EXPECT_EQ(cache.CachedTokens(0, kAll), kEntry);
  EXPECT_EQ(cache.CachedTokens(2, kAll), 2 * kEntry);
}

TEST(PrefixCacheSimulationTest, WhatIsHeldIsNotEvicted) {
  const PrefixChains chains = Chains({{1, 2}, {3}, {4, 5}});
  PrefixCacheSimulation cache({kBlock, 2 * kEntry}, &chains);
  cache.Hold(0, kAll);
  cache.Insert(0);
  Serve(&cache, 1);
  EXPECT_EQ(cache.num_entries(), 2);
  EXPECT_EQ(cache.CachedTokens(1, kAll), 0);
  cache.Fit(0);
  EXPECT_EQ(cache.CachedTokens(0, kAll), 2 * kEntry);
  cache.Release(0);
  cache.Fit(0);
  EXPECT_EQ(cache.num_entries(), 0);
}

TEST(PrefixCacheSimulationTest, TellsWhatComesAndGoes) {
  const PrefixChains chains = Chains({{1, 2}, {3}});
  PrefixCacheSimulation cache({kBlock, 2 * kEntry}, &chains);
  Serve(&cache, 0);
  auto changes = cache.TakeChanges();
  EXPECT_THAT(Numbers(changes.stored), ElementsAre(0, 1));
  EXPECT_THAT(changes.removed, IsEmpty());
  Serve(&cache, 1);
  changes = cache.TakeChanges();
  EXPECT_THAT(Numbers(changes.stored), ElementsAre(2));
  EXPECT_THAT(Numbers(changes.removed), UnorderedElementsAre(1));
  EXPECT_TRUE(cache.TakeChanges().empty());
}

// Against what it says of itself: names that came and went, blocks that are
// used, sequences that hold.
TEST(PrefixCacheSimulationTest, BlocksAndNewsAddUp) {
  std::mt19937 random(7);
  std::vector<std::vector<uint64_t>> prefixes;
  for (int i = 0; i < 200; ++i) {
    prefixes.emplace_back();
    const uint32_t length = 1 + random() % 6;
    for (uint32_t k = 0; k < length; ++k) {
      prefixes.back().push_back(random() % 3);
    }
  }
  const PrefixChains chains = Chains(prefixes);
  constexpr int32_t kTotal = 40 * kEntry / kBlock;
  PrefixCacheSimulation cache({kBlock, 25 * kEntry}, &chains);
  std::set<uint64_t> known;
  std::map<uint32_t, bool> running;  // whether it has entered
  int32_t uncounted = kTotal;
  for (uint32_t i = 0; i < 200; ++i) {
    const auto blocks =
        static_cast<int32_t>(chains.Of(i).size()) * kEntry / kBlock + 1;
    while (uncounted + cache.SharedBlocksWith(i, kAll) < blocks) {
      const uint32_t gone = running.begin()->first;
      running.erase(running.begin());
      uncounted +=
          static_cast<int32_t>(chains.Of(gone).size()) * kEntry / kBlock + 1;
      cache.Release(gone);
    }
    uncounted -= blocks;
    const int32_t promised = cache.CachedTokens(i, kAll);
    EXPECT_EQ(cache.Hold(i, kAll), promised);
    cache.Fit(uncounted);
    running[i] = false;
    for (auto& [request, entered] : running) {
      if (entered || random() % 2 == 0) continue;
      cache.Insert(request);
      entered = true;
    }
    const auto changes = cache.TakeChanges();
    for (const Hash128& name : changes.removed) known.erase(name.low);
    for (const Hash128& name : changes.stored) known.insert(name.low);
    ASSERT_EQ(static_cast<int64_t>(known.size()), cache.num_entries());
    ASSERT_LE(cache.num_entries(), 25);
    // What is idle lies in free blocks.
    const int32_t free = uncounted + cache.shared_blocks();
    ASSERT_GE(free, 0);
    ASSERT_LE(cache.num_idle() * kEntry / kBlock, free);
  }
  for (const auto& [request, entered] : running) cache.Release(request);
  EXPECT_EQ(cache.shared_blocks(), 0);
  EXPECT_EQ(cache.num_idle(), cache.num_entries());
}

}  // namespace
}  // namespace baton::planner
