// Engines whose model several devices share: the answers of one device, to the
// bit.
#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "engine/cpu/cpu_engine.h"
#include "engine/cpu/weight_dtype.h"
#include "engine/cuda/cuda_engine.h"
#include "engine/cuda/device_kv_stage.h"
#include "tests/engine/cuda/device_fixture.h"
#include "tests/engine/cuda/rounded_weights.h"
#include "tests/engine/packed_dir.h"
#include "tests/golden/golden_model.h"
#include "tests/support/scratch_dir.h"
#include "tests/support/tiny_model.h"
#if defined(BATON_EMULATED_DEVICE)
#include "tests/support/emulated_device/emulated_runtime.h"
#endif

namespace baton::engine::cuda {
namespace {

using scheduling::StepPlan;
using scheduling::StepResult;
using test::TinyModelOptions;

class TensorParallelTest : public DeviceTest {
 protected:
  void SetUp() override {
    DeviceTest::SetUp();
    if (IsSkipped()) return;
    if (!OpenDevice(1).ok()) GTEST_SKIP() << "there is one device";
    UseDevice(0);
  }

  static EngineOptions Options(const std::string& model, int32_t ranks) {
    EngineOptions options = OptionsFor(ModelDirOf(model));
    options.tensor_parallel = ranks;
    return options;
  }

  // A prompt's KV, layer by layer with the step, as a prefill worker does it;
  // then a decode step.
  void ExpectHandsOver(const std::string& model, int32_t senders,
                       int32_t receivers, bool on_device);
};

void TensorParallelTest::ExpectHandsOver(const std::string& model,
                                         int32_t senders, int32_t receivers,
                                         bool on_device) {
  SCOPED_TRACE(absl::StrCat(model, " ", senders, " ", receivers, " ",
                            on_device ? "on a device" : "on the host"));
  const auto with_stage = [&](int32_t ranks) {
    EngineOptions options = Options(model, ranks);
    options.kv_staging_bytes = 1 << 20;
    options.kv_staging_on_device = on_device;
    return MakeCuda(options);
  };
  const std::vector<TokenId> tokens = Prompt(35, 21);
  const std::vector<BlockId> from = {4, 9, 2};
  const std::vector<BlockId> to = {1, 7, 3};
  const auto prefill = with_stage(senders);
  const auto decode = with_stage(receivers);
#if defined(BATON_EMULATED_DEVICE)
  // Real ones have to be let.
  EXPECT_TRUE(!on_device || emulated::Reaches(1, 0));
#endif
  KvStage& out = *prefill->kv_stage();
  KvStage& in = *decode->kv_stage();
  ASSERT_EQ(out.staged().layout.page_bytes(), in.staged().layout.page_bytes());
  std::vector<StagedBlock> sent, received;
  for (BlockId i = 0; i < 3; ++i) {
    sent.push_back({from[i], 5 - i});
    received.push_back({to[i], i});
  }
  out.WithStep(sent);
  StepPlan prompt;
  prompt.sequences = {Part(1, tokens, 0, 34, from)};
  int32_t layers = 0;
  KvStage::Ticket last;
  prefill->Execute(prompt, [&](int32_t layer) {
    EXPECT_EQ(layer, layers++);
    for (BlockId i = 0; i < 3; ++i) {
      WriteStaged(in.staged(), layer, i,
                  ReadStaged(out.staged(), layer, sent[i].staged));
    }
    last = in.CopyIn(layer, 1, received);
  });
  EXPECT_EQ(layers, prefill->model().num_layers);
  while (!in.Done(last)) {
  }
  StepPlan next;
  next.sequences = {Part(1, tokens, 34, 35, to)};
  const StepResult result = decode->Execute(next, NoHook);
  ASSERT_EQ(result.sampled.size(), 1u);
  EXPECT_TRUE(SameBits(
      result.sampled[0].logits,
      RunWhole(*MakeCuda(Options(model, 1)), tokens, BlockRange(0, 3))));
}

// One after another: ranks with more heads than one, parts of rows that are no
// whole pieces of a product, and a vocabulary that ends within the last rank.
std::vector<TinyModelOptions> Shareable() {
  TinyModelOptions odd;
  odd.hidden = 60;
  odd.heads = 8;
  odd.kv_heads = 4;
  odd.head_dim = 10;
  odd.intermediate = 100;
  odd.vocab_size = 301;
  odd.layers = 3;
  odd.tie_word_embeddings = false;
  odd.dtype = "F32";
  TinyModelOptions qwen2 = odd;
  qwen2.architecture = "Qwen2ForCausalLM";  // bias of Q, K and V
  qwen2.tie_word_embeddings = true;
  TinyModelOptions qwen3 = odd;
  qwen3.architecture = "Qwen3ForCausalLM";
  qwen3.head_dim = 32;
  TinyModelOptions mistral;
  mistral.architecture = "MistralForCausalLM";
  mistral.sliding_window = 20;
  mistral.kv_heads = 4;
  mistral.vocab_size = 258;
  TinyModelOptions mixtral = odd;
  mixtral.architecture = "MixtralForCausalLM";
  TinyModelOptions qwen3_moe = qwen3;
  qwen3_moe.architecture = "Qwen3MoeForCausalLM";
  qwen3_moe.experts = 9;
  qwen3_moe.experts_per_token = 4;
  qwen3_moe.first_layer_dense = true;
  TinyModelOptions glm4_moe = qwen3_moe;
  glm4_moe.architecture = "Glm4MoeForCausalLM";
  TinyModelOptions gpt_oss = odd;
  gpt_oss.architecture = "GptOssForCausalLM";
  gpt_oss.sliding_window = 20;
  TinyModelOptions gemma = odd;
  gemma.architecture = "Gemma3ForCausalLM";
  gemma.sliding_window = 20;
  gemma.head_dim = 256;
  TinyModelOptions deepseek = qwen3_moe;
  deepseek.architecture = "DeepseekV3ForCausalLM";
  deepseek.heads = 12;
  return {odd,       qwen2,    qwen3,   mistral, mixtral,
          qwen3_moe, glm4_moe, gpt_oss, gemma,   deepseek};
}

// Engines of several devices beside one of one.
void ExpectLogitsOfOneDevice(const std::string& dir) {
  EngineOptions options = OptionsFor(dir);
  const auto one = MakeCuda(options);
  for (const int32_t ranks : {2, 4}) {
    if (!OpenDevice(ranks - 1).ok()) continue;
    options.tensor_parallel = ranks;
    const auto several = MakeCuda(options);
    EXPECT_EQ(several->num_ranks(), ranks);
    EXPECT_EQ(several->backend_name(), one->backend_name());
    EXPECT_EQ(several->model_identity(), one->model_identity());
    const int32_t copies = one->model().IsLatent() ? ranks : 1;
    EXPECT_EQ(several->kv_layout().num_blocks,
              one->kv_layout().num_blocks / copies);
    for (const int32_t length : {1, 17, 70}) {
      std::vector<TokenId> tokens = Prompt(length, 3 + length);
      for (TokenId& token : tokens) token %= one->model().vocab_size;
      const std::vector<BlockId> blocks = BlockRange(2, 5);
      EXPECT_TRUE(SameBits(RunWhole(*several, tokens, blocks),
                           RunWhole(*one, tokens, blocks)))
          << ranks << " " << length;
    }
  }
}

TEST_F(TensorParallelTest, LogitsAreThoseOfOneDevice) {
  const test::ScratchDir scratch;
  const std::string dir = scratch.path() + "/model";
  for (const TinyModelOptions& model : Shareable()) {
    SCOPED_TRACE(model.architecture);
    ASSERT_TRUE(test::WriteTinyModel(dir, model).ok());
    ExpectLogitsOfOneDevice(dir);
  }
}

// Latent attention whose queries are made of the residual stream itself, two
// shared experts, and groups of the others.
TEST_F(TensorParallelTest, LogitsOfDeepseekV2AreThoseOfOneDevice) {
  ExpectLogitsOfOneDevice(LoadGoldenModel("deepseek_v2").dir);
}

// Norms that are behind products, of what adapters add as well.
TEST_F(TensorParallelTest, AdaptersOfNormedProducts) {
  const test::ScratchDir scratch;
  const std::string dir = scratch.path() + "/model";
  const std::vector<TinyModelOptions> models = Shareable();
  const auto gemma = std::find_if(
      models.begin(), models.end(), [](const TinyModelOptions& model) {
        return model.architecture == "Gemma3ForCausalLM";
      });
  ASSERT_NE(gemma, models.end());
  ASSERT_TRUE(test::WriteTinyModel(dir, *gemma).ok());
  EngineOptions options = OptionsFor(dir);
  for (const float strength : {0.1f, 0.0f}) {
    const std::string adapter = absl::StrCat(scratch.path(), "/", strength);
    ASSERT_TRUE(
        test::WriteTinyAdapter(adapter, dir, {.rank = 11, .strength = strength})
            .ok());
    options.adapters.push_back({absl::StrCat("by ", strength), adapter});
  }
  const auto cpu = cpu::CpuEngine::Create(options);
  ASSERT_TRUE(cpu.ok()) << cpu.status();
  const auto one = MakeCuda(options);
  options.tensor_parallel = 2;
  const auto two = MakeCuda(options);
  const std::vector<BlockId> blocks = BlockRange(2, 5);
  for (const int32_t length : {1, 40}) {
    const std::vector<TokenId> tokens = Prompt(length, 9);
    const std::vector<float> plain = RunWhole(*one, tokens, blocks);
    const std::vector<float> adapted = RunWhole(*one, tokens, blocks, 0);
    EXPECT_LT(RelativeError(adapted, RunWhole(**cpu, tokens, blocks, 0)), 0.01);
    EXPECT_GT(RelativeError(adapted, plain), 0.03);
    EXPECT_TRUE(SameBits(RunWhole(*one, tokens, blocks, 1), plain));
    EXPECT_TRUE(SameBits(RunWhole(*two, tokens, blocks, 0), adapted));
    EXPECT_TRUE(SameBits(RunWhole(*two, tokens, blocks, 1), plain));
  }
}

TEST_F(TensorParallelTest, WeightsAndKvInOtherFormatsGiveTheSameLogits) {
  for (const std::string model : {"llama", "latent"}) {
    for (const std::string weights : {"fp8", "int4"}) {
      EngineOptions options = Options(model, 1);
      options.weights = weights;
      options.kv_dtype = "int8";
      const auto one = MakeCuda(options);
      options.tensor_parallel = 2;
      const auto two = MakeCuda(options);
      const std::vector<TokenId> tokens = Prompt(33, 7);
      const std::vector<BlockId> blocks = BlockRange(2, 3);
      EXPECT_TRUE(SameBits(RunWhole(*two, tokens, blocks),
                           RunWhole(*one, tokens, blocks)))
          << model << " " << weights;
    }
  }
}

// Matrices of several formats, and rows that begin within a file's words.
TEST_F(TensorParallelTest, CheckpointsAsTheyAreGiveTheSameLogits) {
  const test::ScratchDir scratch;
  const std::string gptq = scratch.path() + "/gptq";
  const std::string packed = scratch.path() + "/packed";
  TinyModelOptions model;
  model.hidden = 72;
  model.heads = 8;
  model.kv_heads = 4;
  model.intermediate = 104;
  model.vocab_size = 301;
  model.dtype = "F32";
  ASSERT_TRUE(test::WriteTinyModel(gptq, model).ok());
  std::filesystem::create_directory(packed);
  ASSERT_TRUE(WritePackedDir(gptq, cpu::WeightDtype::kInt4, packed).ok());
  StoreAsGptq(gptq);
  for (const std::string& dir : {gptq, packed}) {
    EngineOptions options = OptionsFor(dir);
    const auto one = MakeCuda(options);
    EXPECT_EQ(one->weights_info().dtype, dir == gptq ? "int4-bf16" : "int4");
    const std::vector<TokenId> tokens = Prompt(21, 3);
    const std::vector<BlockId> blocks = BlockRange(0, 2);
    const std::vector<float> expected = RunWhole(*one, tokens, blocks);
    for (const int32_t ranks : {2, 4}) {
      if (!OpenDevice(ranks - 1).ok()) continue;
      options.tensor_parallel = ranks;
      const auto several = MakeCuda(options);
      EXPECT_EQ(several->model_identity(), one->model_identity());
      EXPECT_TRUE(SameBits(RunWhole(*several, tokens, blocks), expected))
          << dir << " " << ranks;
    }
  }
}

// With graphs and without, alone and in batches.
TEST_F(TensorParallelTest, DecodeStepsAreThoseOfOneDevice) {
  const std::vector<TokenId> tokens = Prompt(19, 77);
  const std::vector<TokenId> other = Prompt(19, 78);
  const std::vector<BlockId> own = BlockRange(0, 2);
  for (const std::string model : {"qwen3", "latent"}) {
    const std::vector<float> expected =
        RunWhole(*MakeCuda(Options(model, 1)), tokens, own);
    for (const std::string graphs : {"none", "as they come", "at start"}) {
      ForwardPassOptions pass = SmallPass();
      pass.use_graphs = graphs != "none";
      EngineOptions options = Options(model, 2);
      if (graphs == "at start") options.decode_rows_at_start = 9;
      const auto engine = MakeCuda(options, pass);
      StepPlan prompt;
      prompt.sequences = {Part(0, tokens, 0, 18, own)};
      engine->Execute(prompt, NoHook);
      for (const int32_t batch : {1, 2, 9, 2, 9}) {
        EXPECT_TRUE(
            SameBits(RunInBatch(*engine, tokens, own, other, batch), expected))
            << model << " " << batch << " " << graphs;
      }
    }
  }
}

TEST_F(TensorParallelTest, DrawsWhatOneDeviceDraws) {
  const std::vector<TokenId> tokens = Prompt(40, 5);
  const std::vector<BlockId> blocks = BlockRange(1, 3);
  scheduling::SamplingParams sampling;
  sampling.temperature = 0.9f;
  sampling.seed = 11;
  sampling.top_k = 20;
  std::vector<StepResult> results;
  for (const int32_t ranks : {1, 2}) {
    const auto engine = MakeCuda(Options("llama", ranks));
    StepPlan plan;
    plan.sequences = {Part(1, tokens, 0, 40, blocks)};
    // By the device.
    plan.sequences[0].sampling = &sampling;
    plan.sequences[0].want_logits = false;
    results.push_back(engine->Execute(plan, NoHook));
  }
  ASSERT_EQ(results[1].sampled.size(), 1u);
  EXPECT_EQ(results[1].sampled[0].token, results[0].sampled[0].token);
  EXPECT_EQ(results[1].sampled[0].logprob, results[0].sampled[0].logprob);
}

// KV that one engine computed, handed over through staged blocks to one with
// another number of devices: pages lie alike, with all heads.
TEST_F(TensorParallelTest, KvGoesBetweenUnequalNumbersOfDevices) {
  for (const std::string model : {"llama", "latent"}) {
    for (const bool on_device : {false, true}) {
      ExpectHandsOver(model, 1, 2, on_device);
      ExpectHandsOver(model, 2, 1, on_device);
    }
    ExpectHandsOver(model, 2, 2, /*on_device=*/false);
  }
}

// As a preempted sequence's.
TEST_F(TensorParallelTest, KvComesBackFromTheHost) {
  for (const std::string model : {"llama", "latent"}) {
    EngineOptions options = Options(model, 2);
    options.kv_staging_bytes = 1 << 20;
    const auto engine = MakeCuda(options);
    const std::vector<TokenId> tokens = Prompt(35, 22);
    const std::vector<BlockId> before = {4, 9, 2};
    const std::vector<BlockId> after = {8, 0, 6};
    const std::vector<float> expected =
        RunWhole(*engine, tokens, BlockRange(10, 3));
    StepPlan prompt;
    prompt.sequences = {Part(1, tokens, 0, 34, before)};
    engine->Execute(prompt, NoHook);
    std::vector<std::byte> host(3 * engine->kv_layout().block_bytes());
    KvCopy& copy = engine->kv_stage()->copy();
    copy.ToHost(before, absl::MakeSpan(host));
    copy.FromHost(host, after);
    StepPlan next;
    next.sequences = {Part(1, tokens, 34, 35, after)};
    EXPECT_TRUE(
        SameBits(engine->Execute(next, NoHook).sampled[0].logits, expected))
        << model;
  }
}

// A block that each device has whole takes as much of each.
TEST_F(TensorParallelTest, KvMemoryIsOfAllDevices) {
  EngineOptions options = Options("latent", 1);
  options.kv_memory_bytes = MakeCuda(options)->kv_layout().block_bytes();
  EXPECT_EQ(MakeCuda(options)->kv_layout().num_blocks, 1);
  options.tensor_parallel = 2;
  const auto two = CudaEngine::Create(options, SmallPass());
  EXPECT_EQ(two.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(two.status().message(), testing::HasSubstr(absl::StrCat(
                                          "takes ", 2 * options.kv_memory_bytes,
                                          " bytes of all devices")));
  // With as many staged blocks on a device, there is room for half of them.
  options.kv_memory_share = 0.1;
  ForwardPassOptions pass = SmallPass();
  pass.spare_bytes = 1 << 20;
  const int32_t blocks = MakeCuda(options, pass)->kv_layout().num_blocks;
  options.kv_staging_bytes = int64_t{1} << 50;
  options.kv_staging_on_device = true;
  const auto staged = MakeCuda(options, pass);
  EXPECT_NEAR(staged->kv_layout().num_blocks, blocks / 2, blocks / 20);
  EXPECT_EQ(staged->kv_stage()->staged().layout.num_blocks,
            staged->kv_layout().num_blocks);
}

TEST_F(TensorParallelTest, RefusesWhatItCannotDo) {
  EngineOptions options = Options("llama", 64);
  const auto many = CudaEngine::Create(options, SmallPass());
  EXPECT_EQ(many.status().code(), absl::StatusCode::kFailedPrecondition);
  // Two KV heads.
  options.tensor_parallel = 4;
  if (!OpenDevice(3).ok()) return;
  const auto four = CudaEngine::Create(options, SmallPass());
  EXPECT_EQ(four.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(four.status().message(),
              testing::HasSubstr("num_key_value_heads 2"));
}

#if defined(BATON_EMULATED_DEVICE)
// A table of rotations that grows, and copies of a step's layers.
TEST_F(TensorParallelTest, MemoryIsTakenBeforeDevicesWait) {
  TinyModelOptions model;
  model.max_position = 8192;
  model.kv_heads = 2;
  const test::ScratchDir scratch;
  const std::string dir = scratch.path() + "/model";
  ASSERT_TRUE(test::WriteTinyModel(dir, model).ok());
  EngineOptions options = OptionsFor(dir);
  options.tensor_parallel = 2;
  options.kv_memory_bytes = 32 << 20;
  options.kv_staging_bytes = 1 << 20;
  const auto engine = MakeCuda(options);
  emulated::SetPatience(absl::Milliseconds(100));
  const std::vector<TokenId> tokens = Prompt(5001, 3);
  const std::vector<BlockId> blocks = BlockRange(0, 313);
  StepPlan plan;
  plan.sequences = {Part(1, tokens, 4990, 5000, blocks)};
  engine->kv_stage()->WithStep({{312, 0}});
  engine->Execute(plan, NoHook);
  emulated::SetPatience(absl::ZeroDuration());
}

// Whichever of them it is: outcomes, arrays of a step, lists of pages, and what
// pages pass through that go to the host's other memory.
TEST_F(TensorParallelTest, WithoutPinnedMemoryAnEngineSaysSo) {
  EngineOptions options = Options("llama", 1);
  options.kv_staging_bytes = 1 << 20;
  int staging = 0;
  for (int taken = 0;; ++taken) {
    ASSERT_LT(taken, 100);
    emulated::SetPinnedAllocations(taken);
    const auto engine = CudaEngine::Create(options, SmallPass());
    emulated::SetPinnedAllocations(-1);
    if (engine.ok()) break;
    EXPECT_EQ(engine.status().code(), absl::StatusCode::kResourceExhausted);
    EXPECT_THAT(engine.status().message(), testing::HasSubstr("pinned memory"));
    staging +=
        absl::StrContains(engine.status().message(), "(kv_staging_bytes)");
  }
  EXPECT_EQ(staging, 5);
}
#endif

}  // namespace
}  // namespace baton::engine::cuda
