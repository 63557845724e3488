#include "scheduling/block_hash.h"

#include <numeric>
#include <vector>

#include "gtest/gtest.h"

namespace baton::scheduling {
namespace {

std::vector<TokenId> Tokens(int32_t count) {
  std::vector<TokenId> tokens(static_cast<size_t>(count));
  std::iota(tokens.begin(), tokens.end(), 1000);
  return tokens;
}

// Workers and routers of different releases compare them: fixed for ever.
TEST(BlockHashTest, IsFixed) {
  EXPECT_EQ(ChainStart("").high, 0x99aa06d3014798d8u);
  EXPECT_EQ(ChainStart("").low, 0x6001c324468d497fu);
  const Hash128 first = ChainedHash(ChainStart(""), Tokens(16));
  EXPECT_EQ(first.high, 0xe4bed7c7bcb97d23u);
  EXPECT_EQ(first.low, 0xf633e100d82f7ef2u);
  const Hash128 second = ChainedHash(first, {1, 2, 3, 4});
  EXPECT_EQ(second.high, 0x86d470eeaec12f13u);
  EXPECT_EQ(second.low, 0xa7e4f554affbf129u);
}

TEST(BlockHashTest, DependsOnAllTokensTheirOrderAndWhatIsBefore) {
  const Hash128 start = ChainStart("");
  const Hash128 hash = ChainedHash(start, {1, 2, 3, 4});
  EXPECT_EQ(ChainedHash(start, {1, 2, 3, 4}), hash);
  EXPECT_NE(ChainedHash(start, {1, 2, 4, 3}), hash);
  EXPECT_NE(ChainedHash(start, {1, 2, 3, 5}), hash);
  EXPECT_NE(ChainedHash(start, {1, 2, 3}), hash);
  EXPECT_NE(ChainedHash(hash, {1, 2, 3, 4}), hash);
  EXPECT_NE(ChainedHash(ChainStart("tenant"), {1, 2, 3, 4}), hash);
}

TEST(BlockHashTest, AChainNamesTheFullBlocks) {
  const std::vector<TokenId> tokens = Tokens(11);
  const auto of = absl::MakeConstSpan(tokens);
  const Hash128 first = ChainedHash(ChainStart("t"), of.subspan(0, 4));
  const Hash128 second = ChainedHash(first, of.subspan(4, 4));
  EXPECT_EQ(ChainOf("t", 4, of), (std::vector<Hash128>{first, second}));
  EXPECT_EQ(ChainOf("t", 4, of.subspan(0, 8)).size(), 2u);
  EXPECT_TRUE(ChainOf("t", 4, of.subspan(0, 3)).empty());
  EXPECT_TRUE(ChainOf("t", 4, {}).empty());
}

TEST(BlockHashTest, BlocksMayBeLong) {
  const Hash128 start = ChainStart("");
  std::vector<TokenId> tokens = Tokens(500);
  const Hash128 hash = ChainedHash(start, tokens);
  tokens.back() ^= 1;
  EXPECT_NE(ChainedHash(start, tokens), hash);
}

}  // namespace
}  // namespace baton::scheduling
