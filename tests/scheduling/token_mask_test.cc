#include "scheduling/token_mask.h"

#include <cstdint>
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
