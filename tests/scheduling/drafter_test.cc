#include "scheduling/drafter.h"

#include <random>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace baton::scheduling {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(DrafterTest, GuessesWhatFollowedTheLastTime) {
  Drafter drafter;
  const std::vector<TokenId> tokens = {1, 2, 3, 4, 5, 9, 2, 3};
  EXPECT_THAT(drafter.Guess(tokens, 2), ElementsAre(4, 5));
  EXPECT_THAT(drafter.Guess(tokens, 4), ElementsAre(4, 5, 9, 2));
  EXPECT_THAT(drafter.Guess(tokens, 0), IsEmpty());
}

TEST(DrafterTest, TheLatestCounts) {
  Drafter drafter;
  const std::vector<TokenId> tokens = {1, 2, 10, 5, 1, 2, 20, 6, 1, 2};
  EXPECT_THAT(drafter.Guess(tokens, 1), ElementsAre(20));
}

TEST(DrafterTest, ThreeInARowAreABetterClueThanTwo) {
  Drafter drafter;
  // "7 1 2" was followed by 10, "1 2" last by 20.
  const std::vector<TokenId> tokens = {7, 1, 2, 10, 8, 1, 2, 20, 7, 1, 2};
  EXPECT_THAT(drafter.Guess(tokens, 1), ElementsAre(10));
}

TEST(DrafterTest, KnowsNothingOfWhatIsNew) {
  Drafter drafter;
  EXPECT_THAT(drafter.Guess({}, 4), IsEmpty());
  EXPECT_THAT(drafter.Guess(std::vector<TokenId>{1}, 4), IsEmpty());
  EXPECT_THAT(drafter.Guess(std::vector<TokenId>{1, 2}, 4), IsEmpty());
  EXPECT_THAT(drafter.Guess(std::vector<TokenId>{1, 2, 3}, 4), IsEmpty());
  EXPECT_THAT(drafter.Guess(std::vector<TokenId>{1, 2, 3, 1}, 4), IsEmpty());
}

TEST(DrafterTest, WhatRepeatsItselfGoesOn) {
  Drafter drafter;
  const std::vector<TokenId> tokens = {5, 1, 2, 3, 1, 2, 3};
  EXPECT_THAT(drafter.Guess(tokens, 7), ElementsAre(1, 2, 3, 1, 2, 3, 1));
  Drafter other;
  EXPECT_THAT(other.Guess(std::vector<TokenId>{4, 4, 4}, 3),
              ElementsAre(4, 4, 4));
}

// Token by token, it says what it says of all at once.
TEST(DrafterTest, GrowsWithTheText) {
  std::mt19937 random(3);
  std::vector<TokenId> tokens;
  Drafter drafter;
  int guessed = 0;
  for (int i = 0; i < 2000; ++i) {
    tokens.push_back(static_cast<TokenId>(random() % 12));
    if (i % 3 != 0) continue;
    Drafter anew;
    const auto expected = anew.Guess(tokens, 5);
    EXPECT_EQ(drafter.Guess(tokens, 5), expected) << i;
    guessed += !expected.empty();
  }
  EXPECT_GT(guessed, 500);
}

// A long prompt is taken in bit by bit.
TEST(DrafterTest, ALongPromptHoldsUpNobody) {
  std::vector<TokenId> tokens(10'000);
  for (size_t i = 0; i < tokens.size(); ++i) {
    tokens[i] = static_cast<TokenId>(i);
  }
  const auto say = [&](TokenId first) {
    tokens.push_back(first);
    tokens.push_back(first + 1);
  };
  Drafter drafter;
  say(9000);
  EXPECT_THAT(drafter.Guess(tokens, 2), IsEmpty());
  say(100);
  EXPECT_THAT(drafter.Guess(tokens, 2), ElementsAre(102, 103));
  for (int i = 0; i < 3; ++i) drafter.Guess(tokens, 2);
  say(8000);
  EXPECT_THAT(drafter.Guess(tokens, 2), ElementsAre(8002, 8003));
}

TEST(GuessChanceTest, LearnsHowOftenGuessesAreRight) {
  GuessChance chance;
  EXPECT_EQ(chance.value(), 0.5);
  chance.Learn(4, 0);  // of which one was checked
  EXPECT_DOUBLE_EQ(chance.value(), 0.45);
  chance.Learn(2, 2);
  EXPECT_DOUBLE_EQ(chance.value(), 1 - 0.55 * 0.9 * 0.9);
  for (int i = 0; i < 1000; ++i) chance.Learn(8, 8);
  EXPECT_GT(chance.value(), 0.99);
  EXPECT_LT(chance.value(), 1);
  for (int i = 0; i < 1000; ++i) chance.Learn(8, 0);
  EXPECT_LT(chance.value(), 0.01);
  EXPECT_GT(chance.value(), 0);
  // What it knows of is long ago.
  for (int i = 0; i < 1000; ++i) chance.Skip();
  EXPECT_NEAR(chance.value(), 0.5, 0.01);
}

}  // namespace
}  // namespace baton::scheduling
