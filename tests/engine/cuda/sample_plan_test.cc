#include "engine/cuda/sample_plan.h"

#include <cmath>
#include <vector>

#include <gtest/gtest.h>

#include "engine/philox.h"

namespace baton::engine::cuda {
namespace {

using scheduling::PlannedSequence;
using scheduling::SamplingParams;

class SamplePlanTest : public testing::Test {
 protected:
  SamplePlanTest() {
    sequence_.sample = true;
    sequence_.sampling = &params_;
    history_ = {4, 5, 5, 6, 5};
    sequence_.history = history_;
    sequence_.prompt_length = 2;
  }

  SamplingParams params_;
  std::vector<TokenId> history_;
  PlannedSequence sequence_;
  DrawLists lists_;
};

TEST_F(SamplePlanTest, TheDrawIsThatOfSeedAndIndex) {
  params_.seed = 99;
  const SampleRow row = PlanSample(sequence_, 0, 100, &lists_);
  EXPECT_EQ(row.uniform, UniformDraw(99, 3));
  EXPECT_EQ(row.statistics_only, 0);
  EXPECT_TRUE(lists_.edits.empty());
}

TEST_F(SamplePlanTest, GuessesHaveDrawsAndMasksOfTheirOwn) {
  params_.seed = 99;
  const scheduling::TokenMask masks[] = {{100, {1}}, {100, {2}}, {100, {3}}};
  const scheduling::TokenMask* const after_drafts[] = {&masks[1], &masks[2]};
  sequence_.num_drafts = 2;
  sequence_.allowed = &masks[0];
  sequence_.allowed_after_drafts = after_drafts;
  for (int32_t i = 0; i < 3; ++i) {
    const SampleRow row = PlanSample(sequence_, i, 100, &lists_);
    EXPECT_EQ(row.uniform, UniformDraw(99, 3 + i));
    ASSERT_EQ(row.mask, 1 + i);
    EXPECT_EQ(lists_.masks[i], &masks[i]);
    std::vector<float> logits(100, 0.0f);
    EXPECT_EQ(DrawOnHost(sequence_, i, absl::MakeSpan(logits)).token, 1 + i);
  }
  // Where that does not change, all have the same.
  sequence_.allowed_after_drafts = {};
  PlanSample(sequence_, 2, 100, &lists_);
  EXPECT_EQ(lists_.masks.back(), &masks[0]);
}

TEST_F(SamplePlanTest, PenaltiesCountTheOutput) {
  params_.presence_penalty = 1.0f;
  SampleRow row = PlanSample(sequence_, 0, 100, &lists_);
  // The output alone: 5, 6, 5.
  ASSERT_EQ(row.penalties, 2);
  EXPECT_EQ(lists_.edits[0].token, 5);
  EXPECT_EQ(lists_.edits[0].value, 2.0f);
  EXPECT_EQ(lists_.edits[1].token, 6);
  EXPECT_EQ(lists_.edits[1].value, 1.0f);
  // Repetition looks at the prompt, too; edits of several rows follow.
  params_.repetition_penalty = 1.5f;
  row = PlanSample(sequence_, 0, 100, &lists_);
  EXPECT_EQ(row.first_edit, 2);
  ASSERT_EQ(row.penalties, 3);
  EXPECT_EQ(lists_.edits[2].token, 4);
  EXPECT_EQ(lists_.edits[2].value, 0.0f);
}

TEST_F(SamplePlanTest, BiasesThenPenaltiesThenMasksEachTokenOnce) {
  params_.frequency_penalty = 1.0f;
  params_.logit_bias = {{1, 2.0f}, {8, -3.0f}};
  const std::vector<TokenId> forbidden = {9, 9};
  sequence_.forbidden = forbidden;
  const SampleRow row = PlanSample(sequence_, 0, 100, &lists_);
  EXPECT_EQ(row.biases, 2);
  EXPECT_EQ(row.penalties, 2);
  EXPECT_EQ(row.forbidden, 1);
  ASSERT_EQ(lists_.edits.size(), 5u);
  EXPECT_EQ(lists_.edits[1].token, 8);
  EXPECT_EQ(lists_.edits[1].value, -3.0f);
  EXPECT_EQ(lists_.edits[4].token, 9);
}

TEST_F(SamplePlanTest, MasksLieOneBehindAnother) {
  EXPECT_EQ(PlanSample(sequence_, 0, 100, &lists_).mask, kNoMask);
  const scheduling::TokenMask some(100, {4, 99});
  const scheduling::TokenMask one(100, {0});
  sequence_.allowed = &some;
  EXPECT_EQ(PlanSample(sequence_, 0, 100, &lists_).mask, 1);
  sequence_.allowed = &one;
  EXPECT_EQ(PlanSample(sequence_, 0, 100, &lists_).mask, 2);
  EXPECT_EQ(lists_.masks, std::vector({&some, &one}));
  // No room, or nothing for the device to draw: none is appended.
  sequence_.want_logits = true;
  EXPECT_EQ(PlanSample(sequence_, 0, 100, &lists_).mask, kNoMask);
  EXPECT_EQ(lists_.masks.size(), 2u);
  sequence_.want_logits = false;
  lists_.masks.assign(kMaxMasks, &one);
  const SampleRow row = PlanSample(sequence_, 0, 100, &lists_);
  EXPECT_NE(row.statistics_only, 0);
  EXPECT_EQ(row.mask, kNoMask);
  EXPECT_EQ(lists_.masks.size(), static_cast<size_t>(kMaxMasks));
}

TEST_F(SamplePlanTest, LeavesTheDrawToTheHost) {
  sequence_.top_logprobs = 2;
  SampleRow row = PlanSample(sequence_, 0, 100, &lists_);
  EXPECT_EQ(row.statistics_only, 0);
  EXPECT_EQ(row.top, 2);
  sequence_.want_logits = true;
  row = PlanSample(sequence_, 0, 100, &lists_);
  EXPECT_NE(row.statistics_only, 0);
  EXPECT_EQ(row.top, 0);
  sequence_.want_logits = false;
  // No room for the edits: none is appended.
  lists_.edits.assign(kMaxEdits - 1, {});
  params_.presence_penalty = 1.0f;
  row = PlanSample(sequence_, 0, 100, &lists_);
  EXPECT_NE(row.statistics_only, 0);
  EXPECT_EQ(row.penalties, 0);
  EXPECT_EQ(row.top, 0);
  EXPECT_EQ(lists_.edits.size(), static_cast<size_t>(kMaxEdits - 1));
}

TEST_F(SamplePlanTest, OutcomesBecomeTokens) {
  SampleOutcome outcome;
  outcome.finite = 1;
  outcome.max = 3.0f;
  outcome.total = 2.0;
  outcome.token = 17;
  outcome.own_logit = 2.5f;
  outcome.top = 2;
  const TopLogit tops[kTopPlaces] = {{9, 3.0f}, {17, 2.5f}, {4, 1.0f}};
  const scheduling::SampledToken token =
      TokenOf(sequence_.sequence, outcome, tops, /*most=*/5);
  EXPECT_TRUE(token.ok);
  EXPECT_EQ(token.token, 17);
  EXPECT_FLOAT_EQ(token.logprob, static_cast<float>(-0.5 - std::log(2.0)));
  const auto logprob = static_cast<float>(-std::log(2.0));
  EXPECT_EQ(token.top, std::vector<scheduling::TokenLogprob>(
                           {{9, logprob}, {17, token.logprob}}));
  EXPECT_EQ(TopOf(outcome, tops, /*most=*/1).size(), 1u);
  EXPECT_FALSE(HostDraws(SampleRow(), outcome));
  outcome.undecided = 1;
  EXPECT_TRUE(HostDraws(SampleRow(), outcome));
  outcome.finite = 0;
  EXPECT_FALSE(TokenOf(sequence_.sequence, outcome, tops, 5).ok);
  EXPECT_TRUE(std::isnan(LogprobOf(1.0f, outcome)));
}

}  // namespace
}  // namespace baton::engine::cuda
