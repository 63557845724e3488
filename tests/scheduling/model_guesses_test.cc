// Guesses that the model makes itself, with weights of fewer bits: how many
// steps are worth it, of whom, and what becomes of them.
#include <memory>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "scheduling/block_pool.h"
#include "scheduling/decode_scheduler.h"
#include "scheduling/sequence.h"
#include "scheduling/step_cost.h"

namespace baton::scheduling::model_guesses_test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr int32_t kBlockSize = 8;

// A step that checks, and one that guesses: bound by reading weights.
constexpr StepCost kStep = {.fixed = 10, .per_token = 0.1};
constexpr StepCost kGuess = {.fixed = 3, .per_token = 0.1};

class ModelGuessesTest : public testing::Test {
 protected:
  // Has said 1 2 3 ..., nothing twice.
  Sequence& AddStream(const SamplingParams& sampling = {},
                      const StopParams& stop = {.max_output_tokens = 100},
                      int32_t blocks = 20) {
    std::vector<TokenId> said;
    for (TokenId i = 1; i <= 12; ++i) said.push_back(i);
    Sequence& stream = *sequences_.emplace_back(std::make_unique<Sequence>(
        SequenceId{sequences_.size() + 1}, said, 9, sampling, stop));
    stream.AdoptComputed(11);
    stream.blocks() = *pool_.Allocate(blocks);
    scheduler_->Add(&stream);
    return stream;
  }
  void Use(const DecodeSchedulerOptions& options) {
    scheduler_ = std::make_unique<DecodeScheduler>(options);
  }

  // The steps that guess, each of whose samples is 50, 51, ... by its place: of
  // which streams they were.
  std::vector<std::vector<uint64_t>> Guess(const StepCost& cost = kGuess,
                                           const StepCost& step = kStep) {
    std::vector<std::vector<uint64_t>> steps;
    scheduler_->BeginGuesses({.cost = step});
    while (true) {
      const StepPlan plan = scheduler_->NextGuesses({.cost = step}, cost);
      EXPECT_TRUE(plan.draft);
      if (plan.sequences.empty()) return steps;
      StepResult result;
      steps.emplace_back();
      for (const PlannedSequence& planned : plan.sequences) {
        EXPECT_EQ(planned.tokens.size(), 1u);
        EXPECT_EQ(planned.tokens[0], planned.history.back());
        EXPECT_EQ(planned.first_position + 1,
                  static_cast<int32_t>(planned.history.size()));
        EXPECT_EQ(planned.num_samples(), 1);
        steps.back().push_back(static_cast<uint64_t>(planned.sequence));
        result.sampled.push_back({.sequence = planned.sequence,
                                  .token = 50 + planned.sample_index() - 3});
      }
      scheduler_->TakeGuesses(result);
    }
  }
  StepPlan Plan(const StepCost& step = kStep) {
    return scheduler_->Plan({.cost = step});
  }
  // So many of the guesses that a step checks come true, again and again.
  void Teach(Sequence& stream, int32_t right) {
    for (int i = 0; i < 60; ++i) {
      ASSERT_TRUE(stream.BeginGuesses(4, kBlockSize));
      for (int32_t j = 0; j < 4; ++j) {
        stream.TakeGuess({.token = static_cast<TokenId>(50 + j)});
      }
      StepPlan plan;
      stream.AppendDrafted(&plan, 4, kBlockSize,
                           [](int32_t, double) { return true; });
      ASSERT_EQ(plan.sequences[0].num_drafts, 4);
      std::vector<SampledToken> sampled(5);
      for (int32_t j = 0; j < right; ++j) sampled[j].token = 50 + j;
      EXPECT_EQ(stream.JudgeDrafts(plan.sequences[0], sampled), right);
    }
  }

  BlockPool pool_{1000};
  std::vector<std::unique_ptr<Sequence>> sequences_;
  std::unique_ptr<DecodeScheduler> scheduler_ =
      std::make_unique<DecodeScheduler>(
          DecodeSchedulerOptions{.block_size = kBlockSize, .max_drafts = 4});
};

TEST_F(ModelGuessesTest, AreCheckedByTheNextStep) {
  Sequence& stream = AddStream();
  Teach(stream, 4);
  EXPECT_EQ(Guess().size(), 4u);
  const StepPlan plan = Plan();
  EXPECT_FALSE(plan.draft);
  ASSERT_EQ(plan.sequences.size(), 1u);
  EXPECT_THAT(plan.sequences[0].tokens, ElementsAre(12, 50, 51, 52, 53));
  EXPECT_EQ(plan.sequences[0].num_drafts, 4);
  EXPECT_EQ(plan.sequences[0].first_position, 11);
  // They are of no use behind another token.
  stream.CommitComputed(1);
  stream.CommitSampled(60);
  EXPECT_EQ(Plan().sequences[0].num_drafts, 0);
}

// A guess that comes true half of the time is worth a third of a step, not
// three quarters of one; a second one, of a quarter, is not.
TEST_F(ModelGuessesTest, MustPay) {
  AddStream();
  EXPECT_EQ(Guess().size(), 1u);
  EXPECT_EQ(Guess({.fixed = 7.5}).size(), 0u);
  EXPECT_EQ(Plan().sequences[0].num_drafts, 0);
  EXPECT_THAT(Guess(kGuess, /*step=*/StepCost()), IsEmpty());  // not known
  Use({.block_size = kBlockSize, .max_drafts = 3, .always_drafts = true});
  scheduler_->Add(sequences_[0].get());
  EXPECT_EQ(Guess({.fixed = 100}).size(), 3u);
}

TEST_F(ModelGuessesTest, WhatIsMostlyWrongIsLeftAloneForAWhile) {
  Sequence& stream = AddStream();
  Teach(stream, 0);
  EXPECT_THAT(Guess(), IsEmpty());
  int32_t turns = 0;
  while (Guess().empty() && turns < 1000) ++turns;
  EXPECT_GT(turns, 20);
  EXPECT_LT(turns, 1000);
}

// A step that guesses for several costs hardly more than for one; those whose
// guesses are hardly ever right are not among them.
TEST_F(ModelGuessesTest, AreMadeOfThoseWhoseComeTrue) {
  AddStream();
  Sequence& wrong = AddStream();
  Sequence& right = AddStream();
  Teach(wrong, 0);
  Teach(right, 4);
  const auto steps = Guess({.fixed = 1, .per_token = 0.5});
  ASSERT_FALSE(steps.empty());
  EXPECT_THAT(steps[0], ElementsAre(3, 1));
  EXPECT_THAT(steps.back(), ElementsAre(3));
  const StepPlan plan = Plan();
  EXPECT_EQ(plan.sequences[1].num_drafts, 0);
  EXPECT_EQ(plan.sequences[2].num_drafts, static_cast<int32_t>(steps.size()));
}

TEST_F(ModelGuessesTest, NoStreamWaitsLongerThanItMay) {
  Use({.block_size = kBlockSize, .itl_target_seconds = 30, .max_drafts = 8});
  Teach(AddStream(), 4);
  const double most = 30;
  const auto steps = Guess();
  const double taken = 10.1 + static_cast<double>(steps.size()) * 3.2;
  EXPECT_LE(taken, most);
  EXPECT_GE(steps.size(), 2u);
  EXPECT_LT(steps.size(), 8u);
}

// What was said before costs nothing to look up.
TEST_F(ModelGuessesTest, AreNotMadeOfWhatCanBeLookedUp) {
  std::vector<TokenId> said;
  for (int i = 0; i < 12; ++i) said.push_back(5 + i % 3);
  Sequence stream(SequenceId{9}, said, 9, {}, {.max_output_tokens = 100});
  stream.AdoptComputed(11);
  stream.blocks() = *pool_.Allocate(20);
  scheduler_->Add(&stream);
  EXPECT_THAT(Guess({}), IsEmpty());
  EXPECT_GT(Plan().sequences[0].num_drafts, 0);
  scheduler_->Remove(stream.id());
}

TEST_F(ModelGuessesTest, NotWhereTheyCannotBeChecked) {
  AddStream({.repetition_penalty = 1.1f});
  AddStream({}, {.max_output_tokens = 100, .min_output_tokens = 50});
  AddStream({}, {.max_output_tokens = 4});
  AddStream({}, {.max_output_tokens = 100}, /*blocks=*/2);  // room for 4 tokens
  const auto steps = Guess({});
  ASSERT_FALSE(steps.empty());
  EXPECT_THAT(steps[0], ElementsAre(4));
  AddStream({}, {.max_output_tokens = 6});  // two more, the last is not run
  EXPECT_THAT(Guess({})[0], ElementsAre(4, 5));
  EXPECT_EQ(Plan().sequences[4].num_drafts, 2);
}

TEST_F(ModelGuessesTest, EndBehindWhatEndsTheOutput) {
  AddStream({}, {.max_output_tokens = 100, .stop_token_ids = {51}});
  EXPECT_EQ(Guess({}).size(), 2u);
  EXPECT_THAT(Plan().sequences[0].tokens, ElementsAre(12, 50, 51));
}

TEST_F(ModelGuessesTest, EndWhereTheModelFails) {
  Sequence& stream = AddStream();
  ASSERT_TRUE(stream.BeginGuesses(4, kBlockSize));
  stream.TakeGuess({.token = 50});
  stream.TakeGuess({.ok = false});
  EXPECT_FALSE(stream.MayGuess());
  EXPECT_THAT(Plan().sequences[0].tokens, ElementsAre(12, 50));
}

// Of a budget of tokens each stream's own come first.
TEST_F(ModelGuessesTest, LeaveStreamsTheirTokens) {
  Use({.token_budget = 4, .block_size = kBlockSize, .max_drafts = 4});
  for (int i = 0; i < 3; ++i) AddStream();
  const auto steps = Guess({});
  ASSERT_EQ(steps.size(), 1u);
  EXPECT_EQ(steps[0].size(), 1u);
  const StepPlan plan = Plan();
  EXPECT_EQ(plan.sequences.size(), 3u);
  EXPECT_EQ(plan.NumTokens(), 4);
}

}  // namespace
}  // namespace baton::scheduling::model_guesses_test
