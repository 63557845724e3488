// Streams whose next tokens are guessed: what a step checks of them, and what
// it leaves alone.
#include <memory>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "scheduling/block_pool.h"
#include "scheduling/decode_scheduler.h"
#include "scheduling/sequence.h"
#include "scheduling/step_budget.h"
#include "scheduling/step_cost.h"

namespace baton::scheduling::drafted_streams_test {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::Eq;

constexpr int32_t kBlockSize = 8;

// A machine that is bound by reading weights, and one that computes.
constexpr StepCost kReads = {.fixed = 1, .per_token = 1e-3};
constexpr StepCost kComputes = {.fixed = 1e-3, .per_token = 1};

// What a stream is given besides its tokens.
struct Kind {
  SamplingParams sampling;
  StopParams stop = {.max_output_tokens = 100};
  int32_t blocks = 20;
};

class DraftedStreamsTest : public testing::Test {
 protected:
  // Has said 5 6 7 5 6 7 ..., of which the first `prompt` are the prompt, and
  // the last is to be run.
  Sequence& AddStream(const Kind& kind = {}, int32_t tokens = 12,
                      int32_t prompt = 9) {
    std::vector<TokenId> said;
    for (int32_t i = 0; i < tokens; ++i) said.push_back(5 + i % 3);
    Sequence& stream = *sequences_.emplace_back(
        std::make_unique<Sequence>(SequenceId{sequences_.size() + 1}, said,
                                   prompt, kind.sampling, kind.stop));
    stream.AdoptComputed(tokens - 1);
    stream.blocks() = *pool_.Allocate(kind.blocks);
    scheduler_->Add(&stream);
    return stream;
  }
  StepPlan Plan(const StepCost& cost = kReads) {
    return scheduler_->Plan({.cost = cost});
  }
  std::vector<int32_t> Drafts(const StepPlan& plan) {
    std::vector<int32_t> drafts;
    for (const PlannedSequence& s : plan.sequences) {
      EXPECT_EQ(static_cast<int32_t>(s.tokens.size()), 1 + s.num_drafts);
      drafts.push_back(s.num_drafts);
    }
    return drafts;
  }
  // The stream's guesses all come true, or none does, for a while. Checks some.
  void Teach(Sequence& stream, bool right) {
    StepPlan plan;
    stream.AppendDrafted(&plan, 4, kBlockSize,
                         [](int32_t, double) { return true; });
    const PlannedSequence& planned = plan.sequences[0];
    ASSERT_EQ(planned.num_drafts, 4);
    std::vector<SampledToken> sampled(5);
    for (int i = 0; i < 4; ++i) {
      sampled[i].token = right ? planned.tokens[1 + i] : 99;
    }
    for (int i = 0; i < 100; ++i) {
      EXPECT_EQ(stream.JudgeDrafts(planned, sampled), right ? 4 : 0);
    }
  }
  void Use(const DecodeSchedulerOptions& options) {
    scheduler_ = std::make_unique<DecodeScheduler>(options);
  }

  BlockPool pool_{1000};
  std::vector<std::unique_ptr<Sequence>> sequences_;
  std::unique_ptr<DecodeScheduler> scheduler_ =
      std::make_unique<DecodeScheduler>(
          DecodeSchedulerOptions{.block_size = kBlockSize, .max_drafts = 4});
};

TEST_F(DraftedStreamsTest, GuessesAreRunBehindTheLastToken) {
  AddStream();
  const StepPlan plan = Plan();
  ASSERT_EQ(plan.sequences.size(), 1u);
  const PlannedSequence& planned = plan.sequences[0];
  EXPECT_THAT(planned.tokens, ElementsAre(7, 5, 6, 7, 5));
  EXPECT_EQ(planned.num_drafts, 4);
  EXPECT_EQ(planned.num_samples(), 5);
  EXPECT_EQ(planned.first_position, 11);
  EXPECT_EQ(planned.history.size(), 12u);
  EXPECT_EQ(planned.sample_index(), 3);
  // Its last token reads its KV, the guesses find it read.
  const StepShape shape = ShapeOf(plan);
  EXPECT_EQ(shape.tokens, 5);
  EXPECT_EQ(shape.sequences, 5);
  EXPECT_EQ(shape.context_tokens, 12);
  EXPECT_EQ(shape.prompt_context_tokens, 13 + 14 + 15 + 16);
}

TEST_F(DraftedStreamsTest, NothingIsGuessedUnasked) {
  Use({.block_size = kBlockSize});
  AddStream();
  EXPECT_THAT(Drafts(Plan()), ElementsAre(0));
}

// Where a token costs as much as a step, a guess that comes true half of the
// time is none to check.
TEST_F(DraftedStreamsTest, GuessesMustPay) {
  Sequence& stream = AddStream();
  EXPECT_THAT(Drafts(Plan(kComputes)), ElementsAre(0));
  EXPECT_THAT(Drafts(Plan(StepCost())), ElementsAre(0));  // not known
  // Of one stream the first two, each with half of a chance, of which a step
  // is worth eight.
  const StepCost between = {.fixed = 6, .per_token = 2};
  EXPECT_THAT(Drafts(Plan(between)), ElementsAre(1));
  Teach(stream, true);
  EXPECT_THAT(Drafts(Plan(between)), ElementsAre(4));
  Teach(stream, false);
  EXPECT_THAT(Drafts(Plan(between)), ElementsAre(0));
}

TEST_F(DraftedStreamsTest, UnlessTheyAreCheckedAlways) {
  Use({.block_size = kBlockSize, .max_drafts = 4, .always_drafts = true});
  AddStream();
  EXPECT_THAT(Drafts(Plan(kComputes)), ElementsAre(4));
  EXPECT_THAT(Drafts(Plan(StepCost())), ElementsAre(4));
}

// With many streams a token of each costs less, and a guess as much as ever.
TEST_F(DraftedStreamsTest, ManyStreamsNeedNoGuesses) {
  const StepCost cost = {.fixed = 10, .per_token = 1};
  AddStream();
  EXPECT_THAT(Drafts(Plan(cost)), ElementsAre(3));
  for (int i = 0; i < 7; ++i) AddStream();
  EXPECT_THAT(Drafts(Plan(cost)), Each(Eq(1)));
  for (int i = 0; i < 32; ++i) AddStream({.blocks = 3});
  EXPECT_THAT(Drafts(Plan(cost)), Each(Eq(0)));
}

// A stream may wait 95 % of its target or so, guesses or not.
TEST_F(DraftedStreamsTest, GuessesStayWithinWhatStreamsMayWait) {
  const StepCost cost = {.fixed = 10, .per_token = 1};
  Use({.block_size = kBlockSize, .itl_target_seconds = 100, .max_drafts = 8});
  Sequence& stream = AddStream();
  Teach(stream, true);
  EXPECT_THAT(Drafts(Plan(cost)), ElementsAre(8));
  Use({.block_size = kBlockSize,
       .itl_target_seconds = 15 / StepBudgetSeconds(1),
       .max_drafts = 8});
  scheduler_->Add(&stream);
  EXPECT_THAT(Drafts(Plan(cost)), ElementsAre(4));
}

TEST_F(DraftedStreamsTest, NoGuessesBesidePrompts) {
  AddStream();
  auto prompt = std::make_unique<Sequence>(
      SequenceId{99}, std::vector<TokenId>(40, 5), 40, SamplingParams(),
      StopParams{.max_output_tokens = 10});
  prompt->blocks() = *pool_.Allocate(10);
  scheduler_->Add(prompt.get());
  EXPECT_EQ(Plan().sequences[0].num_drafts, 0);
  scheduler_->Remove(prompt->id());
  EXPECT_THAT(Drafts(Plan()), ElementsAre(4));
}

// What comes behind a token that ends the output does not count.
TEST_F(DraftedStreamsTest, TheEndOfTheOutputEndsTheJudgement) {
  Sequence& stream =
      AddStream({.stop = {.max_output_tokens = 100, .stop_token_ids = {6}}});
  const StepPlan plan = Plan();
  ASSERT_THAT(plan.sequences[0].tokens, ElementsAre(7, 5, 6, 7, 5));
  std::vector<SampledToken> sampled(5);
  for (int i = 0; i < 4; ++i) {
    sampled[i].token = plan.sequences[0].tokens[1 + i];
  }
  EXPECT_EQ(stream.JudgeDrafts(plan.sequences[0], sampled), 2);
  // Nor what is no number.
  sampled[1].ok = false;
  EXPECT_EQ(stream.JudgeDrafts(plan.sequences[0], sampled), 1);
}

// The last token of an output is never run, nor one that has no block.
TEST_F(DraftedStreamsTest, GuessesStayWithinOutputAndBlocks) {
  AddStream({.stop = {.max_output_tokens = 6}});  // 3 of 6: one ends it
  AddStream({.stop = {.max_output_tokens = 4}});  // the last one comes now
  AddStream({.blocks = 2});                       // 12 of 16
  AddStream({.blocks = 2}, /*tokens=*/16);        // the last one just fits
  EXPECT_THAT(Drafts(Plan()), ElementsAre(2, 0, 4, 0));
}

TEST_F(DraftedStreamsTest, GuessesStayWithinTheBudget) {
  Use({.token_budget = 7, .block_size = kBlockSize, .max_drafts = 4});
  AddStream();
  AddStream();
  AddStream();
  // Each stream has its own token first.
  EXPECT_THAT(Drafts(Plan()), ElementsAre(4, 0, 0));
  for (int i = 0; i < 4; ++i) AddStream();
  EXPECT_THAT(Drafts(Plan()), ElementsAre(0, 0, 0, 0, 0, 0, 0));
}

// What decides of the next draw but the model is not known before the token.
TEST_F(DraftedStreamsTest, NothingIsGuessedWhereTokensDecideOfDraws) {
  AddStream({.sampling = {.repetition_penalty = 1.1f}});
  AddStream({.sampling = {.presence_penalty = 0.1f}});
  AddStream({.sampling = {.frequency_penalty = -0.1f}});
  AddStream({.stop = {.max_output_tokens = 50,
                      .stop_token_ids = {1},
                      .min_output_tokens = 4}});
  AddStream({.stop = {.max_output_tokens = 50,
                      .stop_token_ids = {1},
                      .min_output_tokens = 3}});
  AddStream({.sampling = {.temperature = 1, .top_p = 0.5f, .seed = 3}});
  EXPECT_THAT(Drafts(Plan()), ElementsAre(0, 0, 0, 0, 4, 4));
}

// A step that could be given before the token is known waits for it.
TEST_F(DraftedStreamsTest, StepsWaitForTokensBehindWhichGuessesPay) {
  const auto waits = [&](const Kind& kind, const StepCost& cost = kReads) {
    Sequence& stream = AddStream(kind);
    const bool waits = scheduler_->WaitsToGuess({.cost = cost});
    scheduler_->Remove(stream.id());
    return waits;
  };
  EXPECT_TRUE(waits({}));
  EXPECT_FALSE(waits({}, kComputes));
  EXPECT_FALSE(waits({}, StepCost()));
  // The token that comes is guessed, too: one chance in four to be of use.
  EXPECT_TRUE(waits({}, {.fixed = 7, .per_token = 2}));
  EXPECT_FALSE(waits({}, {.fixed = 5, .per_token = 2}));
  // It is the fourth of the output, behind which the last one is not run.
  EXPECT_TRUE(waits({.stop = {.max_output_tokens = 6}}));
  EXPECT_FALSE(waits({.stop = {.max_output_tokens = 5}}));
  EXPECT_TRUE(waits({.stop = {.max_output_tokens = 50,
                              .stop_token_ids = {1},
                              .min_output_tokens = 4}}));
  EXPECT_FALSE(waits({.stop = {.max_output_tokens = 50,
                               .stop_token_ids = {1},
                               .min_output_tokens = 5}}));
  // One is enough.
  Sequence& stream = AddStream();
  AddStream({.stop = {.max_output_tokens = 4}});
  EXPECT_TRUE(scheduler_->WaitsToGuess({.cost = kReads}));
  Teach(stream, false);
  EXPECT_FALSE(
      scheduler_->WaitsToGuess({.cost = {.fixed = 7, .per_token = 2}}));
  Use({.block_size = kBlockSize});
  EXPECT_FALSE(waits({}));
}

// Those that begin as others did, and go on otherwise, are waited for less.
TEST_F(DraftedStreamsTest, WhatWasAwaitedInVainIsAwaitedLess) {
  Sequence& stream =
      AddStream({.stop = {.max_output_tokens = 1000}, .blocks = 100});
  int32_t waited = 0;
  for (int32_t i = 0; i < 60; ++i) {
    // "5 6" comes again and again, and something else behind it.
    waited += scheduler_->WaitsToGuess({.cost = {.fixed = 7, .per_token = 2}});
    for (const TokenId token : {20 + i, 5, 6}) {
      stream.CommitComputed(1);
      stream.CommitSampled(token);
    }
  }
  EXPECT_GT(waited, 0);
  EXPECT_LT(waited, 15);
}

}  // namespace
}  // namespace baton::scheduling::drafted_streams_test
