#include "scheduling/prefix_cache.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/scheduling/prefix_cache_blocks.h"

namespace baton::scheduling::prefix_cache_test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// `blocks` blocks of tokens that begin with `first`, and `more` tokens.
Tokens Some(TokenId first, int32_t blocks, int32_t more = 0) {
  Tokens tokens;
  for (int32_t i = 0; i < blocks * kBlockSize + more; ++i) {
    tokens.push_back(first + i);
  }
  return tokens;
}

Tokens Joined(Tokens a, const Tokens& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

class PrefixCacheTest : public testing::Test {
 protected:
  // A sequence that has its blocks, for `room` tokens more than these: what is
  // cached, and new ones. Null when there are too few.
  std::unique_ptr<Sequence> Start(const Tokens& tokens, size_t room = 0) {
    auto sequence = std::make_unique<Sequence>(
        SequenceId{++last_id_}, tokens, static_cast<int32_t>(tokens.size()),
        SamplingParams(), StopParams());
    PooledBlocks blocks =
        cache_.Match(sequence.get(), static_cast<int32_t>(tokens.size()));
    auto rest = pool_.Allocate(BlocksFor(tokens.size() + room) - blocks.size());
    if (!rest.has_value()) return nullptr;
    blocks.Append(*std::move(rest));
    sequence->blocks() = std::move(blocks);
    Check();
    return sequence;
  }

  // Computes all of it, and lets its blocks enter.
  void Compute(Sequence* sequence) {
    if (sequence->uncomputed() > 0) {
      sequence->AdoptComputed(sequence->uncomputed());
    }
    cache_.Insert(sequence);
    Check();
  }

  // One that comes, is computed and goes; how many tokens were cached.
  int32_t Run(const Tokens& tokens) {
    const auto sequence = Start(tokens);
    EXPECT_NE(sequence, nullptr);
    Compute(sequence.get());
    return sequence->cached();
  }

  // How many tokens of these are cached, without using them.
  int32_t Cached(const Tokens& tokens) {
    Tokens prefix;
    const auto contents = cache_.Contents();
    BlockId before = PrefixCache::kNoBlock;
    int32_t count = 0;
    for (size_t at = 0; at + kBlockSize <= tokens.size(); at += kBlockSize) {
      const auto wanted = absl::MakeConstSpan(tokens).subspan(at, kBlockSize);
      const auto it = std::find_if(
          contents.begin(), contents.end(), [&](const auto& content) {
            return content.before == before && content.tokens == wanted;
          });
      if (it == contents.end()) break;
      before = it->block;
      count += kBlockSize;
    }
    return count;
  }

  void Check() {
    pool_.CheckInvariants();
    cache_.CheckInvariants();
  }

  BlockPool pool_{8};
  PrefixCache cache_{{.block_size = kBlockSize}, &pool_};
  uint64_t last_id_ = 0;
};

TEST_F(PrefixCacheTest, FindsWhatBeginsAlike) {
  EXPECT_EQ(Run(Some(10, 2, 1)), 0);
  EXPECT_EQ(cache_.num_blocks(), 2);
  const auto again = Start(Joined(Some(10, 2), Some(90, 1)));
  EXPECT_EQ(again->cached(), 8);
  const auto half = Start(Joined(Some(10, 1), Some(90, 1)));
  EXPECT_EQ(half->cached(), 4);
  EXPECT_EQ(half->blocks().ids()[0], again->blocks().ids()[0]);
  EXPECT_NE(half->blocks().ids()[1], again->blocks().ids()[1]);
  EXPECT_EQ(Start(Some(11, 1))->cached(), 0);
  // The same tokens in another place are something else.
  EXPECT_EQ(Start(Some(14, 1))->cached(), 0);
}

TEST_F(PrefixCacheTest, OnlyFullBlocksAndNoMoreThanAsked) {
  Run(Some(10, 2, 3));
  EXPECT_EQ(Start(Some(10, 2, 3))->cached(), 8);
  Sequence sequence(SequenceId{100}, Some(10, 2), 8, SamplingParams(),
                    StopParams());
  EXPECT_EQ(cache_.Match(&sequence, 7).size(), 1);
  EXPECT_EQ(sequence.cached(), 4);
  EXPECT_EQ(cache_.Match(&sequence, 3).size(), 0);
  EXPECT_EQ(sequence.cached(), 0);
}

TEST_F(PrefixCacheTest, WhatIsNotComputedDoesNotEnter) {
  const auto sequence = Start(Some(10, 3));
  cache_.Insert(sequence.get());
  EXPECT_EQ(cache_.num_blocks(), 0);
  sequence->AdoptComputed(7);
  cache_.Insert(sequence.get());
  EXPECT_EQ(cache_.num_blocks(), 1);
  sequence->AdoptComputed(1);
  cache_.Insert(sequence.get());
  EXPECT_EQ(cache_.num_blocks(), 2);
  Check();
  EXPECT_EQ(Start(Some(10, 3))->cached(), 8);
}

TEST_F(PrefixCacheTest, WhatIsGeneratedEntersToo) {
  {
    const auto sequence = Start(Some(10, 1), /*room=*/5);
    Compute(sequence.get());
    for (TokenId token = 14; token < 19; ++token) {
      sequence->CommitSampled(token);
      Compute(sequence.get());
    }
  }
  // The next turn of a conversation.
  EXPECT_EQ(Run(Joined(Some(10, 2), Some(90, 1))), 8);
}

TEST_F(PrefixCacheTest, IdleBlocksAreAsGoodAsFree) {
  Run(Some(10, 5));
  EXPECT_EQ(pool_.num_free(), 3);
  EXPECT_EQ(pool_.num_evictable(), 5);
  EXPECT_EQ(pool_.num_available(), 8);
  EXPECT_EQ(pool_.num_in_use(), 0);
  {
    const auto sequence = Start(Joined(Some(10, 2), Some(90, 1)));
    EXPECT_EQ(pool_.num_in_use(), 3);
    EXPECT_EQ(pool_.num_evictable(), 3);
    // All but those in use.
    EXPECT_FALSE(pool_.Allocate(6).has_value());
    EXPECT_EQ(cache_.num_evictions(), 0);
    const auto rest = pool_.Allocate(5);
    ASSERT_TRUE(rest.has_value());
    EXPECT_EQ(cache_.num_evictions(), 3);
    Check();
  }
  EXPECT_EQ(pool_.num_in_use(), 0);
  EXPECT_EQ(Cached(Some(10, 5)), 8);
}

TEST_F(PrefixCacheTest, EvictsTheLongestIdleAndNoneBeforeThoseBehindIt) {
  Run(Some(10, 3));
  Run(Some(50, 3));
  Run(Some(10, 1));  // used again: only its first block
  const auto evict_to = [&](int32_t count) {
    const auto taken = pool_.Allocate(count);
    ASSERT_TRUE(taken.has_value());
    Check();
  };
  evict_to(3);  // two were free
  EXPECT_EQ(Cached(Some(10, 3)), 8);
  evict_to(4);
  EXPECT_EQ(Cached(Some(10, 3)), 4);
  evict_to(6);
  EXPECT_EQ(Cached(Some(50, 3)), 4);
  EXPECT_EQ(Cached(Some(10, 3)), 4);
  evict_to(8);
  EXPECT_THAT(cache_.Contents(), IsEmpty());
  EXPECT_EQ(cache_.num_evictions(), 6);
}

TEST_F(PrefixCacheTest, ASecondCopyStaysOutAndWhatFollowsItGoesBehindTheFirst) {
  auto a = Start(Some(10, 2));
  auto b = Start(Some(10, 3));  // before anything of a is there
  EXPECT_EQ(b->cached(), 0);
  Compute(a.get());
  Compute(b.get());
  EXPECT_EQ(cache_.num_blocks(), 3);
  EXPECT_NE(a->blocks().ids()[1], b->blocks().ids()[1]);
  const auto c = Start(Some(10, 3));
  EXPECT_THAT(c->blocks().ids(),
              ElementsAre(a->blocks().ids()[0], a->blocks().ids()[1],
                          b->blocks().ids()[2]));
}

TEST_F(PrefixCacheTest, WhatIsBeforeAHeldBlockIsHeldToo) {
  auto a = Start(Some(10, 2));
  auto b = Start(Some(10, 3));
  Compute(a.get());
  Compute(b.get());
  a.reset();
  Check();
  // Nobody has a's blocks, but what b has is found through them.
  EXPECT_EQ(pool_.num_evictable(), 0);
  EXPECT_EQ(pool_.num_available(), 3);
  EXPECT_FALSE(pool_.Allocate(4).has_value());
  b.reset();
  Check();
  EXPECT_EQ(pool_.num_evictable(), 3);
  EXPECT_EQ(pool_.num_in_use(), 0);
  EXPECT_TRUE(pool_.Allocate(8).has_value());
}

TEST_F(PrefixCacheTest, ASequenceWhoseEndWasEvictedAddsNothing) {
  auto a = Start(Some(10, 2));
  auto b = Start(Some(10, 2, 3));
  Compute(a.get());
  Compute(b.get());  // stands behind a's blocks with its own
  a.reset();
  ASSERT_TRUE(pool_.Allocate(5).has_value());  // evicts them
  EXPECT_EQ(cache_.num_blocks(), 0);
  b->CommitSampled(21);
  b->CommitComputed(1);
  cache_.Insert(b.get());
  Check();
  EXPECT_EQ(cache_.num_blocks(), 0);
}

TEST_F(PrefixCacheTest, ClearForgetsAndTakesNothingBack) {
  auto a = Start(Some(10, 2));
  Compute(a.get());
  Run(Some(50, 2));
  cache_.Clear();
  Check();
  EXPECT_EQ(cache_.num_blocks(), 0);
  EXPECT_EQ(pool_.num_in_use(), 2);
  EXPECT_EQ(pool_.num_free(), 6);
  for (TokenId token = 18; token < 23; ++token) {
    a->CommitSampled(token);
    a->CommitComputed(1);
  }
  cache_.Insert(a.get());
  EXPECT_EQ(cache_.num_blocks(), 0);
  a.reset();
  EXPECT_EQ(pool_.num_free(), 8);
  EXPECT_EQ(Run(Some(10, 2)), 0);
}

TEST(PrefixCacheEndTest, BlocksMayOutliveIt) {
  BlockPool pool(4);
  std::optional<PooledBlocks> held;
  {
    PrefixCache cache({.block_size = kBlockSize}, &pool);
    Sequence sequence(SequenceId{1}, Some(10, 2), 8, SamplingParams(),
                      StopParams());
    sequence.blocks() = *pool.Allocate(2);
    sequence.AdoptComputed(8);
    cache.Insert(&sequence);
    held = std::move(sequence.blocks());
  }
  EXPECT_EQ(pool.num_in_use(), 2);
  held.reset();
  EXPECT_EQ(pool.num_free(), 4);
}

TEST(PrefixCacheOptionsTest, OffKeepsNothing) {
  BlockPool pool(4);
  PrefixCache cache({.enabled = false, .block_size = kBlockSize}, &pool);
  for (int i = 0; i < 2; ++i) {
    Sequence sequence(SequenceId{1}, Some(10, 2), 8, SamplingParams(),
                      StopParams());
    EXPECT_EQ(cache.Match(&sequence, 8).size(), 0);
    sequence.blocks() = *pool.Allocate(2);
    sequence.AdoptComputed(8);
    cache.Insert(&sequence);
    cache.CheckInvariants();
  }
  EXPECT_EQ(pool.num_free(), 4);
}

TEST(PrefixCacheDeathTest, MatchIsForSequencesWithoutBlocks) {
  BlockPool pool(4);
  PrefixCache cache({.block_size = kBlockSize}, &pool);
  Sequence sequence(SequenceId{1}, Some(10, 2), 8, SamplingParams(),
                    StopParams());
  sequence.blocks() = *pool.Allocate(1);
  EXPECT_DEATH(cache.Match(&sequence, 8), "Check failed");
}

}  // namespace
}  // namespace baton::scheduling::prefix_cache_test
