#include "scheduling/token_mask.h"

#include <cstdint>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace baton::scheduling {
namespace {

using testing::ElementsAre;

TEST(TokenMaskTest, HasWhatItWasGiven) {
  const TokenMask mask(70, {69, 0, 31, 32, 31});
  EXPECT_EQ(mask.vocab_size(), 70);
  for (TokenId token = 0; token < 70; ++token) {
    EXPECT_EQ(mask.Has(token),
              token == 0 || token == 31 || token == 32 || token == 69)
        << token;
  }
  EXPECT_THAT(mask.Tokens(), ElementsAre(0, 31, 32, 69));
}

// The device reads them.
TEST(TokenMaskTest, BitsLieFromTheLowestOn) {
  EXPECT_THAT(TokenMask(70, {0, 33, 69}).words(),
              ElementsAre(1u, 2u, uint32_t{1} << 5));
  EXPECT_THAT(TokenMask(64, {31, 63}).words(),
              ElementsAre(0x80000000u, 0x80000000u));
}

TEST(TokenMaskTest, GoesThroughBytes) {
  for (const int32_t vocab : {1, 7, 8, 9, 31, 32, 33, 64, 70, 1000}) {
    const TokenMask mask(vocab, {0, vocab / 2, vocab - 1});
    const std::string bytes = mask.ToBytes();
    EXPECT_EQ(bytes.size(), (vocab + 7u) / 8u);
    const auto again = TokenMask::FromBytes(vocab, bytes);
    ASSERT_TRUE(again.ok()) << again.status();
    EXPECT_EQ(*again, mask) << vocab;
  }
  EXPECT_EQ(TokenMask(17, {0, 9, 16}).ToBytes(), std::string("\1\2\1"));
}

TEST(TokenMaskTest, BytesThatAreNoneAreNamed) {
  const auto why = [](int32_t vocab, const std::string& bytes) {
    return std::string(TokenMask::FromBytes(vocab, bytes).status().message());
  };
  EXPECT_EQ(why(17, "\1\1"), "has 2 bytes, a vocabulary of 17 takes 3");
  EXPECT_EQ(why(17, "\1\1\2"), "has tokens beyond the vocabulary");
  EXPECT_EQ(why(17, std::string(3, '\0')), "has no token");
}

TEST(TokenMaskTest, CountsItsTokens) {
  EXPECT_EQ(TokenMask(70, {69, 0, 31, 32, 31}).num_tokens(), 4);
}

TEST(TokenMaskTest, SaysWhetherOthersAreLeft) {
  const TokenMask mask(40, {3, 39});
  EXPECT_TRUE(mask.HasBeside({}));
  EXPECT_TRUE(mask.HasBeside({3}));
  EXPECT_TRUE(mask.HasBeside({39, 5}));
  EXPECT_FALSE(mask.HasBeside({39, 5, 3}));
  // What is of no vocabulary is not there.
  EXPECT_TRUE(mask.HasBeside({-1, 40, 3}));
}

TEST(TokenMaskTest, AreEqualWhereTheyHaveTheSame) {
  EXPECT_EQ(TokenMask(40, {3, 39}), TokenMask(40, {39, 3, 3}));
  EXPECT_NE(TokenMask(40, {3, 39}), TokenMask(40, {39}));
  EXPECT_NE(TokenMask(40, {3}), TokenMask(41, {3}));
}

}  // namespace
}  // namespace baton::scheduling
