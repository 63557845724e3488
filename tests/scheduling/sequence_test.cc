// What a sequence plans of its sampling, as it grows.
#include "scheduling/sequence.h"

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace baton::scheduling {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// The next step of `sequence`, and what it is planned to sample.
PlannedSequence Next(const Sequence& sequence, int32_t max_tokens = 100) {
  StepPlan plan;
  sequence.AppendTo(&plan, max_tokens);
  return plan.sequences[0];
}

StopParams StopAfter(int32_t min_output_tokens) {
  StopParams stop;
  stop.max_output_tokens = 4;
  stop.stop_token_ids = {9, 7};
  stop.min_output_tokens = min_output_tokens;
  return stop;
}

TEST(SequenceTest, StopTokensAreForbiddenUntilTheyMayCome) {
  Sequence sequence(SequenceId{1}, {1, 2, 3}, 3, SamplingParams(),
                    StopAfter(2));
  EXPECT_THAT(Next(sequence).forbidden, ElementsAre(9, 7));
  sequence.CommitComputed(3);
  sequence.CommitSampled(5);
  EXPECT_THAT(Next(sequence).forbidden, ElementsAre(9, 7));
  sequence.CommitComputed(1);
  sequence.CommitSampled(6);
  EXPECT_THAT(Next(sequence).forbidden, IsEmpty());
  sequence.CommitComputed(1);
  sequence.CommitSampled(9);
  EXPECT_EQ(sequence.finished(), FinishReason::kStop);
}

TEST(SequenceTest, ANewAttemptCountsTheOutputOfTheLastOne) {
  const std::vector<TokenId> tokens = {1, 2, 3, 5, 6};
  const Sequence before(SequenceId{1}, tokens, 3, SamplingParams(),
                        StopAfter(3));
  EXPECT_THAT(Next(before).forbidden, ElementsAre(9, 7));
  // However the tokens are cut, only the last part samples.
  EXPECT_FALSE(Next(before, 2).sample);
  const Sequence after(SequenceId{2}, tokens, 3, SamplingParams(),
                       StopAfter(2));
  EXPECT_THAT(Next(after).forbidden, IsEmpty());
}

TEST(SequenceTest, WithoutAMinimumNothingIsForbidden) {
  const Sequence sequence(SequenceId{1}, {1, 2, 3}, 3, SamplingParams(),
                          StopAfter(0));
  EXPECT_THAT(Next(sequence).forbidden, IsEmpty());
}

TEST(SequenceTest, EveryTokenComesWithTheLikeliest) {
  Sequence sequence(SequenceId{1}, {1, 2, 3}, 3, SamplingParams(), StopAfter(0),
                    /*top_logprobs=*/5);
  EXPECT_EQ(Next(sequence).top_logprobs, 5);
  sequence.CommitComputed(3);
  sequence.CommitSampled(5);
  EXPECT_EQ(Next(sequence).top_logprobs, 5);
  const Sequence none(SequenceId{2}, {1, 2, 3}, 3, SamplingParams(),
                      StopAfter(0));
  EXPECT_EQ(Next(none).top_logprobs, 0);
}

TEST(SequenceTest, ThePromptsOwnTokensAreTheTargetsOfTheirChunks) {
  // Two tokens of output are there from an earlier attempt.
  Sequence sequence(SequenceId{1}, {1, 2, 3, 4, 5, 6, 7, 8}, 6,
                    SamplingParams(), StopAfter(0));
  EXPECT_EQ(sequence.MaxCached(), 7);
  EXPECT_THAT(Next(sequence).targets, IsEmpty());
  sequence.WantPromptLogprobs(/*first=*/3, /*top=*/2);
  // Token 3 follows token 2, which is to be computed.
  EXPECT_EQ(sequence.MaxCached(), 2);
  sequence.AdoptComputed(1);
  // Nothing that is wanted comes of the first two.
  EXPECT_THAT(Next(sequence, 1).targets, IsEmpty());
  PlannedSequence planned = Next(sequence, 3);
  EXPECT_THAT(planned.targets, ElementsAre(3, 4, 5));
  EXPECT_EQ(planned.target_top_logprobs, 2);
  // Those in front of the first that is wanted are known.
  sequence.CommitComputed(3);
  EXPECT_EQ(sequence.CommitPromptLogprobs(planned), 1);
  // The last chunk samples, and has no target behind the prompt.
  planned = Next(sequence);
  EXPECT_THAT(planned.tokens, ElementsAre(5, 6, 7, 8));
  EXPECT_THAT(planned.targets, ElementsAre(6));
  EXPECT_TRUE(planned.sample);
  sequence.CommitComputed(4);
  EXPECT_EQ(sequence.CommitPromptLogprobs(planned), 0);
  EXPECT_EQ(sequence.MaxCached(), 7);
  sequence.CommitSampled(5);
  EXPECT_THAT(Next(sequence).targets, IsEmpty());
}

}  // namespace
}  // namespace baton::scheduling
