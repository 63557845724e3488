// The whole engine on a device, against the CPU backend and against itself.
#include "engine/cuda/cuda_engine.h"

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/sampling.h"
#include "tests/engine/cuda/device_fixture.h"

namespace baton::engine::cuda {
namespace {

using scheduling::PlannedSequence;
using scheduling::StepPlan;
using scheduling::StepResult;

// Both round activations to bfloat16 at the same places, and sum in other
// orders: a sum that lies near the middle between two values rounds to another
// one (2^-8 apart), here and there.
constexpr double kTolerance = 1e-2;

// So many pages at a time.
DeviceKvCopy KvCopyOf(CudaEngine& engine, int64_t pages) {
  DeviceKvCopy copy({engine.device_kv(0)});
  const absl::Status status =
      copy.TakeMemory(pages * engine.kv_layout().page_bytes());
  CHECK(status.ok()) << status;
  return copy;
}

class CudaEngineTest : public DeviceTest,
                       public testing::WithParamInterface<std::string> {
 protected:
  std::string dir() const { return ModelDirOf(GetParam()); }
  // The large model and long loops are for GPUs; the emulated device runs it
  // where nothing smaller does.
  bool TooLarge() const { return emulated() && GetParam() == "wide"; }
};

INSTANTIATE_TEST_SUITE_P(Models, CudaEngineTest,
                         testing::ValuesIn(ModelNames()),
                         [](const auto& param) { return param.param; });

TEST_P(CudaEngineTest, LogitsAreThoseOfTheCpuBackend) {
  const auto cuda = MakeCuda(dir(), SmallPass());
  const auto cpu = MakeCpu(dir());
  for (const int32_t length : {1, 5, 17, 70}) {
    if (TooLarge() && length > 17) continue;
    const std::vector<TokenId> tokens = Prompt(length, 3 + length);
    const std::vector<BlockId> blocks = BlockRange(2, 5);
    const std::vector<float> expected = RunWhole(*cpu, tokens, blocks);
    EXPECT_LT(RelativeError(RunWhole(*cuda, tokens, blocks), expected),
              kTolerance)
        << length;
  }
}

TEST_P(CudaEngineTest, ChunksGiveTheSameLogits) {
  if (TooLarge()) GTEST_SKIP() << "for GPUs";
  const auto engine = MakeCuda(dir(), SmallPass());
  const int32_t length = emulated() ? 70 : 300;
  const std::vector<TokenId> tokens = Prompt(length, 1);
  const std::vector<float> expected =
      RunWhole(*engine, tokens, BlockRange(0, 19));
  for (const int32_t chunk : {1, 7, 16, 64}) {
    if (emulated() && chunk == 1) continue;  // batches run single tokens
    const std::vector<BlockId> blocks = BlockRange(19 + chunk % 5, 19);
    StepResult result;
    for (int32_t first = 0; first < length; first += chunk) {
      StepPlan plan;
      plan.sequences = {
          Part(1, tokens, first, std::min(length, first + chunk), blocks)};
      result = engine->Execute(plan, NoHook);
    }
    ASSERT_EQ(result.sampled.size(), 1u);
    EXPECT_TRUE(SameBits(result.sampled[0].logits, expected)) << chunk;
  }
}

// One sequence's next step, alone and at every place of batches: each kind of
// product kernel, with graphs and without.
TEST_P(CudaEngineTest, BatchesGiveTheSameLogits) {
  if (TooLarge()) GTEST_SKIP() << "for GPUs";
  constexpr int32_t kContext = 18;
  const std::vector<TokenId> tokens = Prompt(kContext + 1, 77);
  const std::vector<TokenId> other = Prompt(kContext + 1, 78);
  const std::vector<BlockId> own = BlockRange(0, 2);
  std::vector<float> expected;
  for (const bool graphs : {false, true}) {
    ForwardPassOptions options = SmallPass();
    options.use_graphs = graphs;
    const auto engine = MakeCuda(dir(), options);
    StepPlan prompt;
    prompt.sequences = {Part(0, tokens, 0, kContext, own)};
    engine->Execute(prompt, NoHook);
    for (const int32_t batch : {1, 2, 8, 9, 17, 70}) {
      if (emulated() && batch == 70 && GetParam() != "llama" &&
          GetParam() != "moe") {
        continue;
      }
      for (const int32_t place : {0, batch - 1}) {
        StepPlan plan;
        std::vector<std::vector<BlockId>> blocks;
        for (int32_t i = 0; i < batch; ++i) {
          blocks.push_back(BlockRange(2 + 2 * (i % 20), 2));
        }
        for (int32_t i = 0; i < batch; ++i) {
          // The others begin a prompt of their own, or are in their first
          // decode step, which makes this a step that there is a graph for.
          const bool decodes = place == 0;
          plan.sequences.push_back(
              i == place
                  ? Part(0, tokens, kContext, kContext + 1, own)
                  : Part(1 + i, other, 0, decodes ? 1 : 1 + i % 2, blocks[i]));
          if (decodes && i != place) {
            plan.sequences.back().sample = true;
            plan.sequences.back().history = absl::MakeSpan(other).first(1);
          }
        }
        const StepResult result = engine->Execute(plan, NoHook);
        const auto it = std::find_if(
            result.sampled.begin(), result.sampled.end(),
            [](const auto& s) { return s.sequence == SequenceId{0}; });
        ASSERT_NE(it, result.sampled.end());
        if (expected.empty()) expected = it->logits;
        ASSERT_TRUE(SameBits(it->logits, expected))
            << "place " << place << " of " << batch
            << (graphs ? " with graphs" : "");
      }
    }
  }
}

// Once, while the step runs: recorded or not, in one pass or several.
TEST_P(CudaEngineTest, WhatTheCallerDoesBesideAStepIsDoneOnce) {
  if (TooLarge()) GTEST_SKIP() << "for GPUs";
  ForwardPassOptions options = SmallPass();
  options.max_rows = 20;
  const auto engine = MakeCuda(dir(), options);
  EXPECT_TRUE(engine->runs_on_device());
  const std::vector<TokenId> tokens = Prompt(34, 6);
  const std::vector<BlockId> blocks = BlockRange(0, 3);
  std::vector<int32_t> calls;
  // 30 tokens are two passes; the last three steps are graphs, of which the
  // first is run plainly and the second recorded.
  int32_t first = 0;
  for (const int32_t end : {30, 31, 32, 33, 34}) {
    StepPlan plan;
    plan.sequences = {Part(1, tokens, first, end, blocks)};
    int32_t count = 0;
    engine->ExecuteBeside(plan, NoHook, [&] { ++count; });
    calls.push_back(count);
    first = end;
  }
  int32_t empty = 0;
  engine->ExecuteBeside(StepPlan(), NoHook, [&] { ++empty; });
  calls.push_back(empty);
  EXPECT_THAT(calls, testing::Each(1));
}

// Longer steps than a pass takes.
TEST_P(CudaEngineTest, PassesGiveTheSameLogitsAndCallTheHookOnce) {
  if (TooLarge()) GTEST_SKIP() << "for GPUs";
  const std::vector<TokenId> tokens = Prompt(90, 4);
  const std::vector<TokenId> other = Prompt(30, 5);
  const std::vector<BlockId> own = BlockRange(0, 6);
  const std::vector<BlockId> theirs = BlockRange(6, 2);
  std::vector<float> expected;
  std::vector<float> expected_other;
  for (const int32_t rows : {256, 40, 13}) {
    ForwardPassOptions options = SmallPass();
    options.max_rows = rows;
    const auto engine = MakeCuda(dir(), options);
    StepPlan plan;
    plan.sequences = {Part(1, tokens, 0, 90, own),
                      Part(2, other, 0, 30, theirs)};
    std::vector<int32_t> layers;
    const StepResult result =
        engine->Execute(plan, [&](int32_t layer) { layers.push_back(layer); });
    std::vector<int32_t> all(engine->model().num_layers);
    for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<int32_t>(i);
    EXPECT_EQ(layers, all);
    ASSERT_EQ(result.sampled.size(), 2u);
    if (expected.empty()) {
      expected = result.sampled[0].logits;
      expected_other = result.sampled[1].logits;
    }
    EXPECT_TRUE(SameBits(result.sampled[0].logits, expected)) << rows;
    EXPECT_TRUE(SameBits(result.sampled[1].logits, expected_other)) << rows;
  }
}

TEST_P(CudaEngineTest, ScoresAreThoseOfTheCpuBackend) {
  if (TooLarge()) GTEST_SKIP() << "for GPUs";
  const auto cuda = MakeCuda(dir(), SmallPass());
  const auto cpu = MakeCpu(dir());
  const std::vector<TokenId> tokens = Prompt(40, 6);
  const std::vector<TokenId> targets = Prompt(40, 7);
  const std::vector<BlockId> blocks = BlockRange(0, 3);
  StepPlan plan;
  plan.sequences = {Part(1, tokens, 0, 40, blocks)};
  plan.sequences[0].sample = false;
  plan.sequences[0].targets = targets;
  const StepResult a = cuda->Execute(plan, NoHook);
  const StepResult b = cpu->Execute(plan, NoHook);
  ASSERT_EQ(a.target_logprobs.size(), 1u);
  ASSERT_EQ(a.target_logprobs[0].size(), 40u);
  // As near as the logits are (docs/gpu.md).
  EXPECT_LT(RelativeError(a.target_logprobs[0], b.target_logprobs[0]),
            kTolerance);
}

// Of targets, and of what is sampled behind them.
TEST_P(CudaEngineTest, TheLikeliestTokensAreThoseOfTheHost) {
  if (TooLarge()) GTEST_SKIP() << "for GPUs";
  const auto engine = MakeCuda(dir(), SmallPass());
  const std::vector<TokenId> tokens = Prompt(12, 6);
  const scheduling::SamplingParams sampling;
  const auto run = [&](int32_t count, const auto& change) {
    StepPlan plan;
    const std::vector<BlockId> blocks = BlockRange(0, 1);
    plan.sequences = {Part(1, tokens, 0, count, blocks)};
    PlannedSequence& part = plan.sequences[0];
    part.sample = true;
    part.sampling = &sampling;
    part.history = absl::MakeConstSpan(tokens).first(count);
    part.prompt_length = count;
    change(part);
    return engine->Execute(plan, NoHook);
  };
  const StepResult scored = run(12, [&](PlannedSequence& part) {
    part.targets = absl::MakeConstSpan(tokens).subspan(1);
    part.target_top_logprobs = 5;
    part.top_logprobs = 3;
  });
  ASSERT_EQ(scored.target_top.size(), 1u);
  ASSERT_EQ(scored.target_top[0].size(), 11u);
  for (int32_t i = 0; i < 12; ++i) {
    const StepResult one =
        run(i + 1, [](PlannedSequence& part) { part.want_logits = true; });
    std::vector<scheduling::TokenLogprob> top;
    if (i == 11) {
      LogProbability(one.sampled[0].logits, 0, 3, &top);
      EXPECT_EQ(scored.sampled[0].top, top);
      EXPECT_EQ(scored.sampled[0].token, one.sampled[0].token);
      continue;
    }
    EXPECT_EQ(scored.target_logprobs[0][i],
              LogProbability(one.sampled[0].logits, tokens[i + 1], 5, &top));
    EXPECT_EQ(scored.target_top[0][i], top) << i;
  }
}

// Draws on the device are those that the host makes from the same logits.
TEST_P(CudaEngineTest, DrawsAreThoseOfTheHost) {
  const auto engine = MakeCuda(dir(), SmallPass());
  const std::vector<TokenId> tokens = Prompt(20, 8);
  const std::vector<BlockId> blocks = BlockRange(0, 2);
  scheduling::SamplingParams params;
  params.temperature = 1.2f;
  params.top_p = 0.9f;
  params.presence_penalty = 0.3f;
  for (int32_t seed = 0; seed < (emulated() ? 4 : 50); ++seed) {
    params.seed = seed;
    StepPlan plan;
    plan.sequences = {Part(1, tokens, 0, 20, blocks)};
    plan.sequences[0].sampling = &params;
    const StepResult host = engine->Execute(plan, NoHook);
    plan.sequences[0].want_logits = false;
    const StepResult device = engine->Execute(plan, NoHook);
    EXPECT_EQ(device.sampled[0].token, host.sampled[0].token) << seed;
    EXPECT_EQ(device.sampled[0].logprob, host.sampled[0].logprob) << seed;
  }
}

// A sequence goes on in other blocks of another engine, with the KV moved over
// the host.
TEST_P(CudaEngineTest, MovedKvGivesTheSameLogits) {
  if (TooLarge()) GTEST_SKIP() << "for GPUs";
  const auto from = MakeCuda(dir(), SmallPass());
  const auto to = MakeCuda(dir(), SmallPass());
  const std::vector<TokenId> tokens = Prompt(41, 9);
  const std::vector<BlockId> here = BlockRange(3, 3);
  const std::vector<BlockId> there = {9, 1, 5};
  const std::vector<float> expected = RunWhole(*from, tokens, BlockRange(8, 3));
  StepPlan prompt;
  prompt.sequences = {Part(1, tokens, 0, 40, here)};
  from->Execute(prompt, NoHook);
  std::vector<std::byte> host(3 * from->kv_layout().block_bytes());
  KvCopyOf(*from, 1).ToHost(here, absl::MakeSpan(host));
  // Parts of a layer, two layers at a time, and all at once.
  for (const int64_t pages : {2, 7, 1000}) {
    std::vector<std::byte> same(host.size());
    KvCopyOf(*from, pages).ToHost(here, absl::MakeSpan(same));
    EXPECT_TRUE(same == host) << pages;
    KvCopyOf(*to, pages).FromHost(host, there);
    StepPlan next;
    next.sequences = {Part(1, tokens, 40, 41, there)};
    const StepResult result = to->Execute(next, NoHook);
    EXPECT_TRUE(SameBits(result.sampled[0].logits, expected)) << pages;
    KvCopyOf(*to, pages).FromHost(std::vector<std::byte>(host.size()), there);
  }
}

TEST_P(CudaEngineTest, BlockSizesGiveTheSameLogits) {
  if (TooLarge()) GTEST_SKIP() << "for GPUs";
  const std::vector<TokenId> tokens = Prompt(70, 10);
  std::vector<float> expected;
  for (const int32_t block_size : {16, 32, 64, 128}) {
    const auto engine = MakeCuda(dir(), SmallPass(), block_size);
    const std::vector<float> logits = RunWhole(
        *engine, tokens, BlockRange(1, (70 + block_size - 1) / block_size));
    if (expected.empty()) expected = logits;
    EXPECT_TRUE(SameBits(logits, expected)) << block_size;
  }
}

class CudaEngineOptionsTest : public DeviceTest {};

TEST_F(CudaEngineOptionsTest, SaysWhatItIs) {
  const auto engine = MakeCuda(ModelDirOf("llama"), SmallPass());
  const auto cpu = MakeCpu(ModelDirOf("llama"));
  EXPECT_THAT(engine->backend_name(), testing::StartsWith("cuda-sm"));
  EXPECT_EQ(engine->model_identity(), cpu->model_identity());
  EXPECT_TRUE(engine->kv_memory().empty());
  EXPECT_EQ(engine->kv_descriptor(), -1);
  EXPECT_EQ(engine->weights_info().dtype, "bf16");
  EXPECT_GT(engine->weights_info().bytes, 0);
  EXPECT_GT(engine->kv_layout().num_blocks, 100);
}

TEST_F(CudaEngineOptionsTest, RefusesWhatItDoesNotKnow) {
  const auto error = [](EngineOptions options) {
    return CudaEngine::Create(options, SmallPass()).status();
  };
  EngineOptions options = OptionsFor(ModelDirOf("llama"));
  options.weights = "int3";
  EXPECT_EQ(error(options).code(), absl::StatusCode::kUnimplemented);
  EXPECT_EQ(error(options).message(),
            "weights: the cuda backend holds bf16, fp8, int8 or int4, not "
            "int3");
  options = OptionsFor(ModelDirOf("llama"));
  options.kv_dtype = "int4";
  EXPECT_EQ(error(options).code(), absl::StatusCode::kUnimplemented);
  EXPECT_EQ(error(options).message(),
            "kv_dtype: the cuda backend holds bf16, int8 or fp8, not int4");
  options = OptionsFor(ModelDirOf("llama"));
  options.kv_memory_bytes = 10;
  EXPECT_EQ(error(options).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(error(options).message(), testing::HasSubstr("kv_memory_bytes"));
  options.model_dir = "/nowhere";
  EXPECT_EQ(error(options).code(), absl::StatusCode::kNotFound);
}

TEST_F(CudaEngineOptionsTest, TakesAShareOfTheDevice) {
  EngineOptions options = OptionsFor(ModelDirOf("llama"));
  options.kv_memory_share = 0.1;
  const auto engine = CudaEngine::Create(options, SmallPass());
  ASSERT_TRUE(engine.ok()) << engine.status();
  EXPECT_GT((*engine)->kv_layout().total_bytes(), 10 << 20);
}

}  // namespace
}  // namespace baton::engine::cuda
