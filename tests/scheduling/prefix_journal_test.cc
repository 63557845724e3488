// The journal by itself, and what a prefix cache writes into it.
#include "scheduling/prefix_journal.h"

#include <memory>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "scheduling/block_hash.h"
#include "scheduling/block_pool.h"
#include "scheduling/prefix_cache.h"
#include "scheduling/sequence.h"

namespace baton::scheduling::prefix_journal_test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAreArray;

using Names = std::set<std::pair<uint64_t, uint64_t>>;

Hash128 Name(uint64_t number) { return {.high = number, .low = ~number}; }

// Applies changes as one who keeps a list does.
void Apply(const PrefixJournal::Changes& changes, Names* names) {
  if (changes.lost) names->clear();
  for (const Hash128& name : changes.removed) {
    names->erase({name.high, name.low});
  }
  for (const Hash128& name : changes.stored) {
    names->insert({name.high, name.low});
  }
}

TEST(PrefixJournalTest, TellsWhatChangedSinceTheLastTime) {
  PrefixJournal journal(10);
  EXPECT_TRUE(journal.empty());
  journal.Stored(Name(1));
  journal.Stored(Name(2));
  journal.Removed(Name(3));
  EXPECT_FALSE(journal.empty());
  EXPECT_EQ(journal.size(), 3u);
  const PrefixJournal::Changes changes = journal.Take();
  EXPECT_FALSE(changes.lost);
  EXPECT_THAT(changes.stored, ElementsAre(Name(1), Name(2)));
  EXPECT_THAT(changes.removed, ElementsAre(Name(3)));
  EXPECT_TRUE(journal.empty());
  EXPECT_TRUE(journal.Take().empty());
}

TEST(PrefixJournalTest, WhatCameAndWentIsNotThere) {
  PrefixJournal journal(10);
  journal.Stored(Name(1));
  journal.Stored(Name(2));
  journal.Removed(Name(1));
  EXPECT_THAT(journal.Take().stored, ElementsAre(Name(2)));
  journal.Removed(Name(2));
  journal.Stored(Name(2));
  journal.Removed(Name(2));
  EXPECT_THAT(journal.Take().stored, IsEmpty());
  journal.Removed(Name(3));
  journal.Stored(Name(3));
  EXPECT_THAT(journal.Take().stored, ElementsAre(Name(3)));
}

TEST(PrefixJournalTest, ForgetsWhenItOverflows) {
  PrefixJournal journal(4);
  for (uint64_t i = 0; i < 5; ++i) journal.Stored(Name(i));
  EXPECT_FALSE(journal.empty());
  EXPECT_EQ(journal.size(), 0u);
  journal.Removed(Name(7));
  const PrefixJournal::Changes changes = journal.Take();
  EXPECT_TRUE(changes.lost);
  EXPECT_THAT(changes.stored, IsEmpty());
  EXPECT_THAT(changes.removed, IsEmpty());
  journal.Stored(Name(9));
  const PrefixJournal::Changes after = journal.Take();
  EXPECT_FALSE(after.lost);
  EXPECT_THAT(after.stored, ElementsAre(Name(9)));
}

// However changes come and are taken, the lists lead to what is there.
TEST(PrefixJournalTest, LeadsToWhatIsThere) {
  std::mt19937 random(3);
  PrefixJournal journal(1000);
  Names truth, list;
  for (int i = 0; i < 20000; ++i) {
    const uint64_t number = random() % 50;
    const std::pair<uint64_t, uint64_t> pair(number, ~number);
    if (truth.insert(pair).second) {
      journal.Stored(Name(number));
    } else {
      truth.erase(pair);
      journal.Removed(Name(number));
    }
    if (random() % 40 != 0) continue;
    Apply(journal.Take(), &list);
    ASSERT_EQ(list, truth);
  }
}

constexpr int32_t kBlockSize = 4;

class CacheJournalTest : public testing::Test {
 protected:
  CacheJournalTest() { cache_.AddJournal(&journal_); }
  ~CacheJournalTest() override { cache_.RemoveJournal(&journal_); }

  // A prompt that comes, is computed and goes.
  void Run(const std::vector<TokenId>& tokens) {
    Sequence sequence(SequenceId{++last_id_}, tokens,
                      static_cast<int32_t>(tokens.size()), SamplingParams(),
                      StopParams());
    PooledBlocks blocks =
        cache_.Match(&sequence, static_cast<int32_t>(tokens.size()));
    const auto needed =
        static_cast<int32_t>(tokens.size() + kBlockSize - 1) / kBlockSize;
    blocks.Append(*pool_.Allocate(needed - blocks.size()));
    sequence.blocks() = std::move(blocks);
    if (sequence.uncomputed() > 0) {
      sequence.AdoptComputed(sequence.uncomputed());
    }
    cache_.Insert(&sequence);
  }

  // By their names, those of all entries.
  Names InCache() {
    Names names;
    for (const auto& content : cache_.Contents()) {
      std::vector<TokenId> tokens;
      BlockId at = content.block;
      for (const auto* entry = &content; entry != nullptr;) {
        tokens.insert(tokens.begin(), entry->tokens.begin(),
                      entry->tokens.end());
        at = entry->before;
        entry = Find(at);
      }
      const Hash128 name = ChainOf("", kBlockSize, tokens).back();
      names.insert({name.high, name.low});
    }
    return names;
  }
  const PrefixCache::Content* Find(BlockId block) {
    contents_ = cache_.Contents();
    for (const auto& content : contents_) {
      if (content.block == block) return &content;
    }
    return nullptr;
  }

  std::vector<Hash128> AllNames(size_t at_a_time) {
    std::vector<Hash128> names;
    for (BlockId next = 0; next < cache_.pool_size();) {
      next = cache_.AppendNames(next, at_a_time, &names);
    }
    return names;
  }

  PrefixJournal journal_{1000};
  BlockPool pool_{8};
  PrefixCache cache_{{.block_size = kBlockSize}, &pool_};
  std::vector<PrefixCache::Content> contents_;
  uint64_t last_id_ = 0;
};

TEST_F(CacheJournalTest, HasTheNamesThatRoutersMake) {
  const std::vector<TokenId> tokens = {1, 2, 3, 4, 5, 6, 7, 8, 9};
  Run(tokens);
  const std::vector<Hash128> chain = ChainOf("", kBlockSize, tokens);
  EXPECT_EQ(chain.size(), 2u);
  EXPECT_EQ(journal_.Take().stored, chain);
  Run(tokens);
  EXPECT_TRUE(journal_.Take().empty()) << "nothing new";
}

TEST_F(CacheJournalTest, FollowsTheCache) {
  std::mt19937 random(5);
  Names list;
  bool evicted = false;
  for (int i = 0; i < 300; ++i) {
    std::vector<TokenId> tokens;
    const auto length = static_cast<size_t>(1 + random() % 30);
    while (tokens.size() < length) {
      tokens.push_back(static_cast<TokenId>(random() % 2));
      if (tokens.size() % kBlockSize != 1) tokens.back() = 7;
    }
    Run(tokens);
    if (random() % 3 == 0) continue;
    const PrefixJournal::Changes changes = journal_.Take();
    evicted = evicted || !changes.removed.empty();
    Apply(changes, &list);
    ASSERT_EQ(list, InCache());
  }
  EXPECT_TRUE(evicted);
}

TEST_F(CacheJournalTest, SeveralFollowTheSameCache) {
  PrefixJournal other(1000);
  cache_.AddJournal(&other);
  Run({1, 2, 3, 4, 5, 6, 7, 8});
  const std::vector<Hash128> stored = journal_.Take().stored;
  EXPECT_EQ(stored.size(), 2u);
  EXPECT_EQ(other.Take().stored, stored);
  cache_.RemoveJournal(&other);
  Run({9, 9, 9, 9});
  EXPECT_EQ(journal_.Take().stored.size(), 1u);
  EXPECT_TRUE(other.empty());
}

TEST_F(CacheJournalTest, ClearLosesEverything) {
  Run({1, 2, 3, 4, 5, 6, 7, 8});
  cache_.Clear();
  const PrefixJournal::Changes changes = journal_.Take();
  EXPECT_TRUE(changes.lost);
  EXPECT_THAT(changes.stored, IsEmpty());
}

TEST_F(CacheJournalTest, AllNamesInPieces) {
  Run({1, 2, 3, 4, 5, 6, 7, 8});
  Run({1, 2, 3, 4, 9, 9, 9, 9});
  const std::vector<Hash128> stored = journal_.Take().stored;
  EXPECT_EQ(stored.size(), 3u);
  for (size_t at_a_time : {1, 2, 3, 100}) {
    EXPECT_THAT(AllNames(at_a_time), UnorderedElementsAreArray(stored));
  }
}

TEST(CacheWithoutJournalTest, OffHasNoNames) {
  BlockPool pool(4);
  PrefixCache cache({.enabled = false, .block_size = kBlockSize}, &pool);
  std::vector<Hash128> names;
  EXPECT_FALSE(cache.enabled());
  cache.AppendNames(0, 10, &names);
  EXPECT_THAT(names, IsEmpty());
}

}  // namespace
}  // namespace baton::scheduling::prefix_journal_test
