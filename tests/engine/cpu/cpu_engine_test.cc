// The whole engine on small random models: what a step does, and which steps it
// refuses. That it gives the same answer whatever the step looks like is in
// same_answer_test.cc.
#include "engine/cpu/cpu_engine.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/sampling.h"
#include "tests/engine/cpu/engine_fixture.h"

namespace baton::engine::cpu {
namespace {

using scheduling::PlannedSequence;
using scheduling::SamplingParams;
using scheduling::StepPlan;
using scheduling::StepResult;

class CpuEngineTest : public EngineFixture {};

INSTANTIATE_TEST_SUITE_P(Models, CpuEngineTest, EngineCases(), EngineCaseName);

TEST_P(CpuEngineTest, TargetsGetTheLogarithmOfTheirProbability) {
  const auto engine = Make();
  const std::vector<TokenId> tokens = Prompt(40, 5);
  // The token after each, scored in two chunks.
  std::vector<float> scored;
  for (const auto& [first, end] : {std::pair{0, 25}, {25, 39}}) {
    const std::vector<BlockId> blocks = BlockRange(0, 3);
    StepPlan plan;
    plan.sequences = {Part(1, tokens, first, end, blocks)};
    plan.sequences[0].targets =
        absl::MakeSpan(tokens).subspan(first + 1, end - first);
    const StepResult result = engine->Execute(plan, NoHook);
    ASSERT_EQ(result.target_logprobs.size(), 1u);
    scored.insert(scored.end(), result.target_logprobs[0].begin(),
                  result.target_logprobs[0].end());
  }
  ASSERT_EQ(scored.size(), 39u);
  for (int32_t i = 0; i < 39; ++i) {
    const std::vector<TokenId> prefix(tokens.begin(), tokens.begin() + i + 1);
    const std::vector<float> logits =
        RunWhole(*engine, prefix, BlockRange(3, 3));
    double total = 0.0;
    for (const float x : logits) total += std::exp(double{x});
    ASSERT_NEAR(scored[i], logits[tokens[i + 1]] - std::log(total), 1e-4) << i;
  }
}

// Of the first tokens of a prompt, in any chunks; what is sampled behind them
// is what it is without.
TEST_P(CpuEngineTest, TheLikeliestTokensInThePlaceOfTargets) {
  const auto engine = Make();
  const std::vector<TokenId> tokens = Prompt(24, 5);
  const std::vector<BlockId> blocks = BlockRange(0, 3);
  std::vector<std::vector<scheduling::TokenLogprob>> expected;
  std::vector<float> logprobs;
  for (int32_t i = 0; i < 20; ++i) {
    const std::vector<TokenId> prefix(tokens.begin(), tokens.begin() + i + 1);
    const std::vector<float> logits =
        RunWhole(*engine, prefix, BlockRange(3, 3));
    expected.emplace_back();
    logprobs.push_back(
        LogProbability(logits, tokens[i + 1], 5, &expected.back()));
  }
  const SamplingParams sampling;
  for (const int32_t chunk : {24, 7}) {
    std::vector<std::vector<scheduling::TokenLogprob>> top;
    std::vector<float> scored;
    for (int32_t first = 0; first < 24; first += chunk) {
      const int32_t end = std::min(24, first + chunk);
      StepPlan plan;
      plan.sequences = {Part(1, tokens, first, end, blocks)};
      PlannedSequence& part = plan.sequences[0];
      if (first < 20) {
        part.targets = absl::MakeSpan(tokens).subspan(
            first + 1, std::min(20, end) - first);
      }
      part.target_top_logprobs = 5;
      part.sample = end == 24;
      part.sampling = &sampling;
      part.history = tokens;
      part.prompt_length = 24;
      part.top_logprobs = 2;
      const StepResult result = engine->Execute(plan, NoHook);
      for (const auto& some : result.target_logprobs) {
        scored.insert(scored.end(), some.begin(), some.end());
      }
      for (const auto& some : result.target_top) {
        top.insert(top.end(), some.begin(), some.end());
      }
      ASSERT_EQ(result.sampled.size(), end == 24 ? 1u : 0u);
      if (end < 24) continue;
      EXPECT_TRUE(result.sampled[0].ok);
      EXPECT_EQ(result.sampled[0].top.size(), 2u);
    }
    EXPECT_EQ(scored, logprobs) << chunk;
    EXPECT_EQ(top, expected) << chunk;
  }
}

TEST_P(CpuEngineTest, LogitsAreCloseToThePortableOnes) {
  const std::vector<TokenId> tokens = Prompt(60, 5);
  const std::vector<float> portable = RunWhole(
      *MakeEngine(dir(), "portable", dtypes()), tokens, BlockRange(0, 4));
  const std::vector<float> logits = RunWhole(*Make(), tokens, BlockRange(0, 4));
  double square = 0.0, difference = 0.0;
  for (size_t i = 0; i < logits.size(); ++i) {
    square += std::pow(portable[i], 2);
    difference += std::pow(portable[i] - logits[i], 2);
  }
  EXPECT_GT(square, 0.0);
  // Another order of sums now and then tips a rounding to bfloat16.
  EXPECT_LT(std::sqrt(difference / square), 0.02);
}

TEST_P(CpuEngineTest, TheHookSeesTheLayersKvInOrder) {
  const auto engine = Make();
  const KvLayout& layout = engine->kv_layout();
  const std::vector<TokenId> tokens = Prompt(32, 6);
  const std::vector<BlockId> blocks = {4, 2};
  StepPlan plan;
  plan.sequences = {Part(1, tokens, 0, 32, blocks)};
  std::vector<int32_t> layers;
  std::vector<std::vector<std::byte>> pages;
  engine->Execute(plan, [&](int32_t layer) {
    layers.push_back(layer);
    for (const BlockId block : blocks) {
      const auto page = engine->kv_memory().subspan(
          layout.PageOffset(layer, block), layout.page_bytes());
      pages.emplace_back(page.begin(), page.end());
    }
  });
  EXPECT_EQ(layers, BlockRange(0, layout.num_layers));
  size_t i = 0;
  for (int32_t layer = 0; layer < layout.num_layers; ++layer) {
    for (const BlockId block : blocks) {
      const auto page = engine->kv_memory().subspan(
          layout.PageOffset(layer, block), layout.page_bytes());
      const std::vector<std::byte> now(page.begin(), page.end());
      EXPECT_EQ(pages[i], now) << "layer " << layer;
      EXPECT_NE(pages[i], std::vector<std::byte>(layout.page_bytes()));
      ++i;
    }
  }
}

// The hand-off: the pages alone carry a sequence to another engine.
TEST_P(CpuEngineTest, PagesMoveToAnotherEngine) {
  const auto from = Make(1);
  const auto to = Make(2);
  const KvLayout& layout = from->kv_layout();
  const std::vector<TokenId> tokens = Prompt(50, 7);
  const std::vector<BlockId> there = {7, 1, 6, 3}, here = {0, 9, 4, 5};
  const std::vector<float> expected = RunWhole(*from, tokens, there);
  for (int32_t layer = 0; layer < layout.num_layers; ++layer) {
    for (size_t i = 0; i < there.size(); ++i) {
      std::memcpy(to->kv_memory().data() + layout.PageOffset(layer, here[i]),
                  from->kv_memory().data() + layout.PageOffset(layer, there[i]),
                  layout.page_bytes());
    }
  }
  StepPlan plan;
  plan.sequences = {Part(1, tokens, 49, 50, here)};
  EXPECT_TRUE(SameBits(to->Execute(plan, NoHook).sampled[0].logits, expected));
}

TEST_P(CpuEngineTest, NonFiniteLogitsFailTheirSequenceOnly) {
  const auto engine = Make();
  const KvLayout& layout = engine->kv_layout();
  const std::vector<TokenId> tokens = Prompt(20, 8);
  const std::vector<BlockId> bad_blocks = BlockRange(0, 2);
  const std::vector<BlockId> good_blocks = BlockRange(2, 2);
  const std::vector<float> expected = RunWhole(*engine, tokens, good_blocks);
  RunWhole(*engine, tokens, bad_blocks);
  // A value of a visible position that is not a number; or its scale.
  const bool bf16 = layout.dtype == KvDtype::kBf16;
  const uint32_t nan = bf16 ? 0x7fc0u : 0x7fc00000u;
  std::memcpy(engine->kv_memory().data() + layout.PageOffset(0, 0) +
                  (bf16 ? layout.ValuesOffset() : layout.ValueScalesOffset()),
              &nan, bf16 ? 2 : 4);
  StepPlan plan;
  plan.sequences = {Part(1, tokens, 19, 20, bad_blocks),
                    Part(2, tokens, 19, 20, good_blocks)};
  const StepResult result = engine->Execute(plan, NoHook);
  EXPECT_FALSE(result.sampled[0].ok);
  ASSERT_TRUE(result.sampled[1].ok);
  EXPECT_TRUE(SameBits(result.sampled[1].logits, expected));
}

class CpuEnginePlanTest : public testing::Test {
 protected:
  CpuEnginePlanTest()
      : engine_(MakeEngine(EngineModelDir("llama"), "", {}, 1)) {
    plan_.sequences = {Part(1, tokens_, 0, 20, blocks_)};
  }

  void ExpectCheckFails(const char* what) {
    GTEST_FLAG_SET(death_test_style, "threadsafe");
    EXPECT_DEATH(engine_->Execute(plan_, NoHook), what);
  }

  std::vector<TokenId> tokens_ = Prompt(20, 9);
  std::vector<BlockId> blocks_ = {0, 1};
  StepPlan plan_;
  std::unique_ptr<Engine> engine_;
};

TEST_F(CpuEnginePlanTest, AnEmptyPlanIsFine) {
  plan_.sequences.clear();
  int hooks = 0;
  EXPECT_TRUE(
      engine_->Execute(plan_, [&](int32_t) { ++hooks; }).sampled.empty());
  EXPECT_EQ(hooks, engine_->model().num_layers);
}

TEST_F(CpuEnginePlanTest, LogitsComeOnlyWhenWanted) {
  plan_.sequences[0].want_logits = false;
  const StepResult result = engine_->Execute(plan_, NoHook);
  EXPECT_TRUE(result.sampled[0].logits.empty());
  EXPECT_LT(result.sampled[0].logprob, 0.0f);
}

TEST_F(CpuEnginePlanTest, RandomTokensAreKeyedByTheirIndex) {
  SamplingParams params;
  params.temperature = 5.0f;
  params.seed = 3;
  plan_.sequences[0].sampling = &params;
  const TokenId token = engine_->Execute(plan_, NoHook).sampled[0].token;
  EXPECT_EQ(engine_->Execute(plan_, NoHook).sampled[0].token, token);
  // The same draw on another engine with the prompt cut elsewhere is another
  // index, so most likely another token.
  int same = 0;
  for (int32_t prompt = 2; prompt <= 20; ++prompt) {
    plan_.sequences[0].prompt_length = prompt;
    same += engine_->Execute(plan_, NoHook).sampled[0].token == token;
  }
  EXPECT_LT(same, 10);
}

TEST_F(CpuEnginePlanTest, TokenOutOfRange) {
  tokens_[3] = 320;
  ExpectCheckFails("vocab_size");
}

TEST_F(CpuEnginePlanTest, BlockOutOfRange) {
  blocks_[1] = engine_->kv_layout().num_blocks;
  ExpectCheckFails("num_blocks");
}

TEST_F(CpuEnginePlanTest, TooFewBlocks) {
  plan_.sequences[0].blocks = absl::MakeSpan(blocks_).first(1);
  ExpectCheckFails("blocks");
}

TEST_F(CpuEnginePlanTest, PositionBeyondTheContext) {
  const std::vector<BlockId> many = BlockRange(0, 40);
  plan_.sequences[0].first_position = 500;
  plan_.sequences[0].blocks = many;
  ExpectCheckFails("max_position");
}

TEST_F(CpuEnginePlanTest, MoreTargetsThanTokens) {
  std::vector<TokenId> targets = tokens_;
  targets.push_back(1);
  plan_.sequences[0].targets = targets;
  ExpectCheckFails("targets");
}

TEST_F(CpuEnginePlanTest, TooManyOfTheLikeliest) {
  plan_.sequences[0].targets = tokens_;
  plan_.sequences[0].target_top_logprobs = 21;
  ExpectCheckFails("target_top_logprobs");
}

TEST_F(CpuEnginePlanTest, TargetOutOfRange) {
  std::vector<TokenId> targets = tokens_;
  targets[7] = 320;
  plan_.sequences[0].targets = targets;
  ExpectCheckFails("vocab_size");
}

TEST_F(CpuEnginePlanTest, ASequenceTwice) {
  plan_.sequences.push_back(plan_.sequences[0]);
  ExpectCheckFails("planned twice");
}

}  // namespace
}  // namespace baton::engine::cpu
