#include "scheduling/step_budget.h"

#include <random>

#include "gtest/gtest.h"

namespace baton::scheduling {
namespace {

StepShape With(const StepShape& beside, int64_t computed, int32_t tokens) {
  const int64_t context = ContextTokens(computed, tokens);
  return {.tokens = beside.tokens + tokens,
          .context_tokens = beside.context_tokens + (tokens == 1 ? context : 0),
          .sequences = beside.sequences + 1,
          .prompt_context_tokens = tokens == 1 ? 0 : context};
}

TEST(MaxChunkTokensTest, IsTheLongestThatFits) {
  std::mt19937 random(1);
  const auto draw = [&](double most) {
    return most * std::uniform_real_distribution<double>()(random);
  };
  int none = 0, all = 0;
  for (int i = 0; i < 5000; ++i) {
    const StepCost cost = {.fixed = draw(0.02),
                           .per_token = random() % 4 == 0 ? 0 : draw(1e-3),
                           .per_context_token = draw(1e-6),
                           .per_sequence = draw(1e-3),
                           .per_prompt_context_token = draw(1e-6)};
    const StepShape beside = {
        .tokens = static_cast<int64_t>(random() % 20),
        .context_tokens = static_cast<int64_t>(random() % 20000),
        .sequences = static_cast<int64_t>(random() % 20)};
    const double budget = draw(0.2);
    const auto computed = static_cast<int64_t>(random() % 8000);
    const auto most = static_cast<int32_t>(random() % 300);
    int32_t expected = most;
    while (expected > 0 &&
           cost.Seconds(With(beside, computed, expected)) > budget) {
      --expected;
    }
    EXPECT_EQ(MaxChunkTokens(cost, beside, budget, computed, most), expected);
    none += most > 0 && expected == 0;
    all += most > 0 && expected == most;
  }
  EXPECT_GT(none, 100);
  EXPECT_GT(all, 100);
}

TEST(MaxChunkTokensTest, LaterChunksOfAPromptAreShorter) {
  const StepCost cost = {
      .fixed = 0.005, .per_token = 1e-4, .per_prompt_context_token = 1e-7};
  int32_t before = 1 << 20;
  for (int64_t computed = 0; computed < 16384; computed += 2048) {
    const int32_t tokens =
        MaxChunkTokens(cost, {4, 4000, 4}, 0.045, computed, 1 << 20);
    EXPECT_LT(tokens, before);
    EXPECT_GT(tokens, 0);
    before = tokens;
  }
}

TEST(StepBudgetTest, IsLessThanTheTarget) {
  EXPECT_EQ(StepBudgetSeconds(0), 0);
  EXPECT_LT(StepBudgetSeconds(0.05), 0.05);
  EXPECT_GT(StepBudgetSeconds(0.05), 0.04);
}

TEST(CatchUpBudgetTest, IsTheUsualOneForStreamsThatAreNotBehind) {
  EXPECT_EQ(CatchUpBudgetSeconds(0.05, 0), StepBudgetSeconds(0.05));
  // What was quick before is no reason to be slow now.
  EXPECT_EQ(CatchUpBudgetSeconds(0.05, -1), StepBudgetSeconds(0.05));
}

TEST(CatchUpBudgetTest, IsWhatIsLeftForThoseThatAre) {
  // A token each 47.5 ms. 30 are gone for the first one, 10 for the fifth.
  EXPECT_NEAR(SecondsBehind(0.05, 0.03, 0), 0.03, 1e-12);
  EXPECT_NEAR(CatchUpBudgetSeconds(0.05, 0.03), 0.0175, 1e-12);
  EXPECT_NEAR(SecondsBehind(0.05, 0.2, 4), 0.01, 1e-12);
  EXPECT_NEAR(CatchUpBudgetSeconds(0.05, 0.01), 0.0375, 1e-12);
  EXPECT_NEAR(SecondsBehind(0.05, 0.2, 10), -0.275, 1e-12);
  // Nothing is left, which is not "any time".
  for (const double behind : {0.0475, 0.1}) {
    EXPECT_GT(CatchUpBudgetSeconds(0.05, behind), 0);
    EXPECT_LT(CatchUpBudgetSeconds(0.05, behind), 1e-3);
  }
}

TEST(CatchUpBudgetTest, WhoIsTwoTargetsBehindIsLost) {
  EXPECT_FALSE(IsLost(0.05, 0.099));
  EXPECT_TRUE(IsLost(0.05, 0.101));
}

TEST(PaysToJoinTest, WeighsThoseThatWaitAgainstThoseThatEnd) {
  const StepCost cost = {.fixed = 0.01, .per_token = 0.001};
  // Nobody is held up.
  EXPECT_TRUE(PaysToJoin(cost, {.tokens = 10'000}, /*ending=*/0,
                         /*waiting=*/1));
  // A step is saved, 10 ms: to itself, and to those behind it.
  EXPECT_TRUE(PaysToJoin(cost, {.tokens = 19}, 1, 1));
  EXPECT_FALSE(PaysToJoin(cost, {.tokens = 21}, 1, 1));
  EXPECT_TRUE(PaysToJoin(cost, {.tokens = 21}, 1, 2));
  EXPECT_FALSE(PaysToJoin(cost, {.tokens = 41}, 2, 2));
  EXPECT_TRUE(PaysToJoin(StepCost(), {.tokens = 10'000}, 5, 1));
}

TEST(ChunkRampTest, DoublesWhatRanAndForgets) {
  ChunkRamp ramp(/*first=*/32, /*most=*/200);
  EXPECT_EQ(ramp.limit(), 32);
  ramp.Planned(10);
  EXPECT_EQ(ramp.limit(), 32);
  ramp.Planned(32);
  EXPECT_EQ(ramp.limit(), 64);
  ramp.Planned(40);
  EXPECT_EQ(ramp.limit(), 80);
  ramp.Planned(16);  // less is no reason to doubt what was seen
  EXPECT_EQ(ramp.limit(), 80);
  for (int i = 0; i < 100; ++i) ramp.Planned(0);
  EXPECT_EQ(ramp.limit(), 80);
  ramp.Planned(150);
  EXPECT_EQ(ramp.limit(), 200);
  for (int i = 0; i < 1000; ++i) ramp.Planned(0);
  EXPECT_EQ(ramp.limit(), 32);
}

}  // namespace
}  // namespace baton::scheduling
