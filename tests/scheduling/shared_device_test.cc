// A prefill and a decode scheduler of one worker, whose steps take turns: how
// prompts make way for streams.
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "scheduling/block_pool.h"
#include "scheduling/decode_scheduler.h"
#include "scheduling/prefill_scheduler.h"
#include "scheduling/sequence.h"

namespace baton::scheduling {
namespace {

constexpr int32_t kTokensPerBlock = 16;
// 10 ms, and 1 ms for each token.
constexpr StepCost kTenAndOne = {.fixed = 0.010, .per_token = 0.001};

std::unique_ptr<Sequence> MakeRequest(uint64_t id, int32_t prompt,
                                      double itl_target = 0) {
  StopParams stop;
  stop.max_output_tokens = 1000;
  return std::make_unique<Sequence>(
      SequenceId{id}, std::vector<TokenId>(static_cast<size_t>(prompt), 1),
      prompt, SamplingParams(), stop, 0,
      Urgency{.itl_target_seconds = itl_target});
}

std::unique_ptr<Sequence> MakeStream(uint64_t id, double itl_target,
                                     BlockPool* pool) {
  auto stream = MakeRequest(id, 10, itl_target);
  stream->blocks() = *pool->Allocate(4);
  stream->AdoptComputed(10);
  stream->AdoptSampled(1);
  return stream;
}

int64_t Tokens(const StepPlan& plan) { return plan.NumTokens(); }

TEST(SharedDeviceTest, StreamsSayWhatTheyLeave) {
  BlockPool pool(64);
  DecodeScheduler decode({.block_size = kTokensPerBlock});
  // Of the step that is planned.
  const auto spare = [&](const StepOutlook& outlook) {
    decode.Plan(outlook);
    return decode.SpareSeconds(outlook);
  };
  const StepOutlook outlook = {.cost = kTenAndOne};
  EXPECT_EQ(spare(outlook), 0);
  // One that may wait as long as it takes changes nothing.
  auto patient = MakeStream(1, 0, &pool);
  decode.Add(patient.get());
  EXPECT_EQ(spare(outlook), 0);
  // 90 ms, of which a step of both takes 12; of the tighter one, 45.
  auto stream = MakeStream(2, 0.1, &pool);
  decode.Add(stream.get());
  EXPECT_DOUBLE_EQ(spare(outlook), 0.090 - 0.012);
  auto tight = MakeStream(3, 0.05, &pool);
  const std::vector<const Sequence*> coming = {tight.get()};
  EXPECT_DOUBLE_EQ(spare({.cost = kTenAndOne, .coming = coming}),
                   0.045 - 0.012);
  decode.Add(tight.get());
  EXPECT_DOUBLE_EQ(spare(outlook), 0.045 - 0.013);
  // One that is behind leaves less: 47.5 ms for its next token, 10 are gone.
  EXPECT_DOUBLE_EQ(spare({.now = 0.010, .cost = kTenAndOne}),
                   0.0475 - 0.010 - 0.013);
  // Streams that cannot keep it leave next to nothing, but something.
  EXPECT_DOUBLE_EQ(spare({.cost = {.fixed = 1}}), 45e-6);
  // What a prompt beside them takes is not left either.
  auto prompt = MakeRequest(4, 100, 0.001);
  prompt->blocks() = *pool.Allocate(8);
  decode.Add(prompt.get());
  EXPECT_DOUBLE_EQ(spare(outlook), 45e-6);
}

// Contexts have grown since a step was planned.
TEST(SharedDeviceTest, WhatStepsAheadTakeIsTheStreams) {
  BlockPool pool(64);
  DecodeScheduler decode({.block_size = kTokensPerBlock});
  auto stream = MakeStream(1, 0.1, &pool);
  decode.Add(stream.get());
  const StepOutlook outlook = {
      .cost = {.fixed = 0.010, .per_context_token = 1e-5}};
  decode.Plan(outlook);
  EXPECT_DOUBLE_EQ(decode.SpareSeconds(outlook), 0.090 - 0.010 - 11e-5);
  decode.RanAhead(0, {.tokens = 1, .context_tokens = 2000, .sequences = 1});
  EXPECT_DOUBLE_EQ(decode.SpareSeconds(outlook), 0.090 - 0.030);
}

TEST(SharedDeviceTest, AStepOfPromptsTakesNoLongerThanItMay) {
  BlockPool pool(64);
  PrefillScheduler prefill({.token_budget = 512, .block_size = kTokensPerBlock},
                           &pool);
  auto a = MakeRequest(1, 200), b = MakeRequest(2, 300);
  prefill.Add(a.get());
  prefill.Add(b.get());
  // 10 ms and a token per ms.
  EXPECT_EQ(Tokens(prefill.Plan({.cost = kTenAndOne, .most_seconds = 0.110})),
            100);
  // However little time, the first prompt goes on; alone.
  StepPlan plan = prefill.Plan({.cost = kTenAndOne, .most_seconds = 1e-6});
  EXPECT_EQ(Tokens(plan), 16);
  EXPECT_EQ(plan.sequences.size(), 1u);
  // The same while nothing is known of the time.
  EXPECT_EQ(Tokens(prefill.Plan({.most_seconds = 10})), 16);
  // Of a prompt that is nearly done, the rest, and then of the next.
  a->CommitComputed(190);
  plan = prefill.Plan({.cost = kTenAndOne, .most_seconds = 0.035});
  ASSERT_EQ(plan.sequences.size(), 2u);
  EXPECT_EQ(plan.sequences[0].tokens.size(), 10u);
  EXPECT_EQ(plan.sequences[1].tokens.size(), 15u);
  // Without a bound, all of both, while nothing says that it does not pay.
  EXPECT_EQ(Tokens(prefill.Plan()), 310);
}

TEST(SharedDeviceTest, PromptsLeaveTheBlocksThatStreamsNeed) {
  BlockPool pool(10);
  PrefillScheduler prefill({.token_budget = 512, .block_size = kTokensPerBlock},
                           &pool);
  auto prompt = MakeRequest(1, 100);  // seven blocks
  prefill.Add(prompt.get());
  EXPECT_EQ(prefill.blocks_wanted(), 0);
  EXPECT_TRUE(prefill.Plan({.blocks_kept = 4}).sequences.empty());
  EXPECT_EQ(prefill.blocks_wanted(), 7);
  EXPECT_EQ(pool.num_available(), 10);
  EXPECT_EQ(Tokens(prefill.Plan({.blocks_kept = 3})), 100);
  EXPECT_EQ(prefill.blocks_wanted(), 0);
  EXPECT_EQ(pool.num_available(), 3);
}

}  // namespace
}  // namespace baton::scheduling
