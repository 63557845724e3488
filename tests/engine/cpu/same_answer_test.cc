// The logits of a sequence are the same, to the bit, whatever the steps look
// like that it is run in: the batch, the chunks, the threads, the blocks.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "engine/engine.h"
#include "tests/engine/cpu/engine_fixture.h"

namespace baton::engine::cpu {
namespace {

using scheduling::StepPlan;
using scheduling::StepResult;

class SameAnswerTest : public EngineFixture {};

INSTANTIATE_TEST_SUITE_P(Models, SameAnswerTest, EngineCases(), EngineCaseName);

// One sequence's next step, alone and at every place of batches of up to 64.
TEST_P(SameAnswerTest, DecodeBatchesOf1To64GiveTheSameLogits) {
  constexpr int32_t kContext = 18;
  const std::vector<TokenId> tokens = Prompt(kContext + 1, 77);
  const std::vector<TokenId> other = Prompt(kContext + 1, 78);
  const std::vector<BlockId> own = BlockRange(0, 2);
  std::vector<float> expected;
  for (const int32_t threads : {1, 2}) {
    const auto engine = Make(threads);
    StepPlan prompt;
    prompt.sequences = {Part(0, tokens, 0, kContext, own)};
    engine->Execute(prompt, NoHook);
    for (const int32_t batch : {1,  2,  3,  4,  5,  6,  7,  8,  12, 13,
                                16, 17, 24, 25, 31, 32, 33, 48, 63, 64}) {
      for (const int32_t place : {0, batch / 2, batch - 1}) {
        StepPlan plan;
        std::vector<std::vector<BlockId>> blocks;
        for (int32_t i = 0; i < batch; ++i) {
          blocks.push_back(BlockRange(2 + 2 * i, 2));
        }
        for (int32_t i = 0; i < batch; ++i) {
          // The others start a prompt of their own, some of them of two tokens.
          plan.sequences.push_back(
              i == place ? Part(0, tokens, kContext, kContext + 1, own)
                         : Part(1 + i, other, 0, 1 + i % 2, blocks[i]));
        }
        const StepResult result = engine->Execute(plan, NoHook);
        ASSERT_EQ(result.sampled.size(), 1u);
        if (expected.empty()) expected = result.sampled[0].logits;
        ASSERT_TRUE(SameBits(result.sampled[0].logits, expected))
            << "place " << place << " of " << batch << " on " << threads
            << " threads";
      }
    }
  }
}

TEST_P(SameAnswerTest, ChunksGiveTheSameLogits) {
  const auto engine = Make();
  const std::vector<TokenId> tokens = Prompt(150, 1);
  const std::vector<float> expected =
      RunWhole(*engine, tokens, BlockRange(0, 10));
  for (const int32_t chunk : {1, 5, 16, 64, 149}) {
    const std::vector<BlockId> blocks = BlockRange(10 + chunk % 7, 10);
    StepResult result;
    for (int32_t first = 0; first < 150; first += chunk) {
      StepPlan plan;
      plan.sequences = {
          Part(1, tokens, first, std::min(150, first + chunk), blocks)};
      result = engine->Execute(plan, NoHook);
    }
    ASSERT_EQ(result.sampled.size(), 1u);
    EXPECT_TRUE(SameBits(result.sampled[0].logits, expected)) << chunk;
  }
}

TEST_P(SameAnswerTest, ABatchGivesTheSameLogits) {
  const auto engine = Make();
  constexpr int kSequences = 9;
  std::vector<std::vector<TokenId>> tokens;
  std::vector<std::vector<float>> alone;
  for (int i = 0; i < kSequences; ++i) {
    tokens.push_back(Prompt(3 + 11 * i, 20 + i));
    alone.push_back(RunWhole(*engine, tokens[i], BlockRange(0, 6)));
  }
  // A mix of whole prompts, prompts in two chunks, and decode steps.
  StepPlan first, second;
  std::vector<std::vector<BlockId>> blocks;
  for (int i = 0; i < kSequences; ++i) blocks.push_back(BlockRange(6 * i, 6));
  for (int i = 0; i < kSequences; ++i) {
    const int32_t size = static_cast<int32_t>(tokens[i].size());
    const int32_t cut = i % 3 == 0 ? 0 : i % 3 == 1 ? size / 2 : size - 1;
    if (cut > 0)
      first.sequences.push_back(Part(i, tokens[i], 0, cut, blocks[i]));
    second.sequences.push_back(Part(i, tokens[i], cut, size, blocks[i]));
  }
  EXPECT_TRUE(engine->Execute(first, NoHook).sampled.empty());
  const StepResult result = engine->Execute(second, NoHook);
  ASSERT_EQ(result.sampled.size(), static_cast<size_t>(kSequences));
  for (int i = 0; i < kSequences; ++i) {
    EXPECT_EQ(result.sampled[i].sequence, SequenceId(i));
    EXPECT_TRUE(SameBits(result.sampled[i].logits, alone[i])) << i;
  }
}

// What else is asked of a token is the same, too, among others that ask for
// other things.
TEST_P(SameAnswerTest, ABatchGivesTheSameTokensWithTheLikeliest) {
  const auto engine = Make();
  const std::vector<TokenId> tokens = Prompt(30, 11);
  const std::vector<TokenId> other = Prompt(30, 12);
  const std::vector<TokenId> forbidden = {3, 60, 200};
  std::vector<TokenId> all_but(engine->model().vocab_size - 10);
  std::iota(all_but.begin(), all_but.end(), 0);
  const scheduling::TokenMask allowed(engine->model().vocab_size, all_but);
  scheduling::SamplingParams params;
  params.temperature = 1.5f;
  params.top_p = 0.9f;
  params.frequency_penalty = 0.5f;
  params.seed = 4;
  params.logit_bias = {{2, -100.0f}, {60, 8.0f}, {100, 1.5f}, {250, 2.0f}};
  scheduling::SampledToken expected;
  for (const int32_t batch : {1, 2, 7, 16}) {
    std::vector<std::vector<BlockId>> blocks;
    for (int32_t i = 0; i < batch; ++i) blocks.push_back(BlockRange(2 * i, 2));
    for (const int32_t place : {0, batch / 2, batch - 1}) {
      StepPlan plan;
      for (int32_t i = 0; i < batch; ++i) {
        plan.sequences.push_back(
            Part(i, i == place ? tokens : other, 0, 30, blocks[i]));
        if (i % 3 == 0) plan.sequences.back().top_logprobs = i % 21;
      }
      scheduling::PlannedSequence& own = plan.sequences[place];
      own.sampling = &params;
      own.forbidden = forbidden;
      own.allowed = &allowed;
      own.top_logprobs = 20;
      const StepResult result = engine->Execute(plan, NoHook);
      const scheduling::SampledToken& sampled = result.sampled[place];
      if (expected.top.empty()) expected = sampled;
      EXPECT_EQ(sampled.token, expected.token) << place << " of " << batch;
      EXPECT_EQ(sampled.logprob, expected.logprob);
      ASSERT_EQ(sampled.top.size(), 20u);
      EXPECT_EQ(sampled.top, expected.top);
      for (int32_t i = 0; i < batch; ++i) {
        if (i == place) continue;
        EXPECT_EQ(result.sampled[i].top.size(),
                  static_cast<size_t>(plan.sequences[i].top_logprobs));
      }
    }
  }
}

TEST_P(SameAnswerTest, ThreadsAndBlockSizesGiveTheSameLogits) {
  const std::vector<TokenId> tokens = Prompt(100, 3);
  const std::vector<float> expected =
      RunWhole(*Make(), tokens, BlockRange(0, 7));
  for (const int32_t threads : {1, 3}) {
    EXPECT_TRUE(SameBits(
        RunWhole(*Make(threads), tokens, {5, 3, 9, 1, 0, 2, 8}), expected))
        << threads;
  }
  for (const int32_t block_size : {32, 64, 128}) {
    const auto engine = Make(2, block_size);
    EXPECT_TRUE(
        SameBits(RunWhole(*engine, tokens, BlockRange(1, 100 / block_size + 1)),
                 expected))
        << block_size;
  }
}

// What preemption and migration do: the tokens generated so far become prompt.
TEST_P(SameAnswerTest, DecodingEqualsPrefillOfTheTokensSoFar) {
  const auto engine = Make();
  const std::vector<BlockId> blocks = BlockRange(0, 6);
  std::vector<TokenId> tokens = Prompt(40, 4);
  std::vector<std::vector<float>> logits;
  int32_t computed = 0;
  while (tokens.size() < 80) {
    const int32_t size = static_cast<int32_t>(tokens.size());
    StepPlan plan;
    plan.sequences = {Part(1, tokens, computed, size, blocks)};
    const StepResult result = engine->Execute(plan, NoHook);
    logits.push_back(result.sampled[0].logits);
    computed = size;
    tokens.push_back(result.sampled[0].token);
    EXPECT_EQ(result.sampled[0].token,
              std::max_element(logits.back().begin(), logits.back().end()) -
                  logits.back().begin());
  }
  for (size_t i = 0; i < logits.size(); i += 13) {
    const std::vector<TokenId> prefix(tokens.begin(), tokens.begin() + 40 + i);
    EXPECT_TRUE(
        SameBits(RunWhole(*engine, prefix, BlockRange(20, 6)), logits[i]))
        << i;
  }
}

}  // namespace
}  // namespace baton::engine::cpu
