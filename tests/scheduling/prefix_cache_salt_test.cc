// Sequences of different salts share nothing, whatever their hashes are.
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "scheduling/prefix_cache.h"

namespace baton::scheduling {
namespace {

constexpr int32_t kSaltedBlockSize = 4;
constexpr int32_t kSaltedBlocks = 3;
constexpr int32_t kSaltedTokens = kSaltedBlocks * kSaltedBlockSize;

// As if all salts had the same hash.
Hash128 SameStart(absl::string_view) { return ChainStart("all alike"); }

class PrefixCacheSaltTest : public testing::TestWithParam<bool> {
 protected:
  // Whether the hashes of all salts are the same.
  bool collide() const { return GetParam(); }

  static std::unique_ptr<Sequence> Make(const std::string& salt) {
    std::vector<TokenId> tokens;
    for (TokenId i = 0; i < kSaltedTokens; ++i) tokens.push_back(10 + i);
    return std::make_unique<Sequence>(SequenceId{1}, std::move(tokens),
                                      kSaltedTokens, SamplingParams(),
                                      StopParams(), 0, Urgency(), salt);
  }

  // One that comes, is computed and goes; how many tokens were cached.
  int32_t Run(const std::string& salt) {
    const auto sequence = Make(salt);
    EXPECT_EQ(cache_.CachedTokens(*sequence, kSaltedTokens), CachedWith(salt));
    PooledBlocks blocks = cache_.Match(sequence.get(), kSaltedTokens);
    blocks.Append(*pool_.Allocate(kSaltedBlocks - blocks.size()));
    sequence->blocks() = std::move(blocks);
    if (sequence->cached() < kSaltedTokens) {
      sequence->AdoptComputed(kSaltedTokens);
    }
    cache_.Insert(sequence.get());
    cache_.CheckInvariants();
    pool_.CheckInvariants();
    return sequence->cached();
  }

  // Tokens that are there of first blocks with this salt, and behind them.
  int32_t CachedWith(const std::string& salt) const {
    const auto contents = cache_.Contents();
    BlockId at = PrefixCache::kNoBlock;
    int32_t count = 0;
    const auto next = [&] {
      return std::find_if(
          contents.begin(), contents.end(), [&](const auto& content) {
            return content.before == at &&
                   (at != PrefixCache::kNoBlock || content.salt == salt);
          });
    };
    for (auto it = next(); it != contents.end(); it = next()) {
      at = it->block;
      count += kSaltedBlockSize;
    }
    return count;
  }

  BlockPool pool_{16};
  PrefixCache cache_{{.block_size = kSaltedBlockSize,
                      .chain_start = GetParam() ? &SameStart : &ChainStart},
                     &pool_};
};

TEST_P(PrefixCacheSaltTest, OthersFindNothing) {
  EXPECT_EQ(Run("a"), 0);
  for (const char* other : {"", "b", "aa", "A"}) EXPECT_EQ(Run(other), 0);
  EXPECT_EQ(Run("a"), kSaltedTokens);
  // Of those that collide, the first has the name.
  EXPECT_EQ(cache_.num_blocks(), collide() ? kSaltedBlocks : 5 * kSaltedBlocks);
  EXPECT_EQ(Run("b"), collide() ? 0 : kSaltedTokens);
  EXPECT_EQ(Run(""), collide() ? 0 : kSaltedTokens);
}

TEST_P(PrefixCacheSaltTest, OthersFindNothingOfTheUnsalted) {
  EXPECT_EQ(Run(""), 0);
  EXPECT_EQ(Run("a"), 0);
  EXPECT_EQ(Run(std::string(1, '\0')), 0);
  EXPECT_EQ(Run(""), kSaltedTokens);
}

// A block that is given to another salt forgets the one that it had.
TEST_P(PrefixCacheSaltTest, AnEvictedBlockIsOfNoSalt) {
  EXPECT_EQ(Run("a"), 0);
  { const auto all = pool_.Allocate(16); }
  EXPECT_EQ(cache_.num_blocks(), 0);
  EXPECT_EQ(Run(""), 0);
  EXPECT_EQ(Run("a"), 0);
  EXPECT_EQ(Run(""), kSaltedTokens);
}

TEST_P(PrefixCacheSaltTest, NamesAreThoseThatRoutersCompute) {
  Run("tenant");
  if (collide()) return;
  std::vector<Hash128> names;
  cache_.AppendNames(0, 16, &names);
  EXPECT_EQ(names.size(), static_cast<size_t>(kSaltedBlocks));
  for (const Hash128& name :
       ChainOf("tenant", kSaltedBlockSize, Make("")->tokens())) {
    EXPECT_NE(std::find(names.begin(), names.end(), name), names.end());
  }
}

INSTANTIATE_TEST_SUITE_P(All, PrefixCacheSaltTest, testing::Bool(),
                         [](const auto& info) {
                           return info.param ? "HashesCollide" : "HashesDiffer";
                         });

}  // namespace
}  // namespace baton::scheduling
