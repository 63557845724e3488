// The whole engine on small random models: the same answer whatever the step
// looks like.
#include "engine/cpu/cpu_engine.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/cpu/kernel_choice.h"
#include "engine/engine_factory.h"
#include "tests/support/tiny_model.h"

namespace baton::engine::cpu {
namespace {

using scheduling::PlannedSequence;
using scheduling::SampledToken;
using scheduling::SamplingParams;
using scheduling::StepPlan;
using scheduling::StepResult;
using test::TinyModelOptions;
using test::WriteTinyModel;

SamplingParams Greedy() {
  SamplingParams params;
  params.temperature = 0.0f;
  return params;
}
const SamplingParams kGreedy = Greedy();

void NoHook(int32_t) {}

std::vector<TokenId> Prompt(int32_t length, uint32_t seed) {
  std::vector<TokenId> tokens(length);
  for (int32_t i = 0; i < length; ++i) {
    tokens[i] = static_cast<TokenId>((seed * 7919u + i * 104729u) % 256);
  }
  return tokens;
}

std::vector<BlockId> Blocks(std::initializer_list<BlockId> ids) { return ids; }

std::vector<BlockId> BlockRange(BlockId first, int32_t count) {
  std::vector<BlockId> blocks(count);
  std::iota(blocks.begin(), blocks.end(), first);
  return blocks;
}

// The part of a plan that runs tokens [first, end) of `all`, sampling at the
// end of `all`.
PlannedSequence Part(uint64_t id, const std::vector<TokenId>& all,
                     int32_t first, int32_t end,
                     const std::vector<BlockId>& blocks) {
  PlannedSequence s;
  s.sequence = SequenceId{id};
  s.tokens = absl::MakeSpan(all).subspan(first, end - first);
  s.first_position = first;
  s.blocks = blocks;
  s.sample = end == static_cast<int32_t>(all.size());
  s.sampling = &kGreedy;
  s.history = all;
  s.prompt_length = 1;
  s.want_logits = true;
  return s;
}

// How weights and KV are held.
struct Dtypes {
  const char* weights = "bf16";
  const char* kv = "bf16";
};

std::unique_ptr<Engine> MakeEngine(const std::string& dir,
                                   const std::string& isa,
                                   const Dtypes& dtypes = {},
                                   int32_t num_threads = 2,
                                   int32_t block_size = 16) {
  EngineOptions options;
  options.model_dir = dir;
  options.weights = dtypes.weights;
  options.kv_dtype = dtypes.kv;
  options.cpu_isa = isa;
  options.num_threads = num_threads;
  options.block_size = block_size;
  options.kv_memory_bytes = 4 << 20;
  auto engine = CreateEngine(options);
  CHECK(engine.ok()) << engine.status();
  return *std::move(engine);
}

std::vector<float> RunWhole(Engine& engine, const std::vector<TokenId>& tokens,
                            const std::vector<BlockId>& blocks) {
  StepPlan plan;
  plan.sequences = {
      Part(1, tokens, 0, static_cast<int32_t>(tokens.size()), blocks)};
  StepResult result = engine.Execute(plan, NoHook);
  CHECK_EQ(result.sampled.size(), 1u);
  CHECK(result.sampled[0].ok);
  return result.sampled[0].logits;
}

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && !a.empty() &&
         std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// A model per architecture, one of them with odd sizes everywhere.
std::vector<std::pair<std::string, TinyModelOptions>> Models() {
  TinyModelOptions llama;
  TinyModelOptions odd;
  odd.hidden = 57;
  odd.heads = 6;
  odd.kv_heads = 3;
  odd.head_dim = 10;
  odd.intermediate = 101;
  odd.vocab_size = 301;
  odd.layers = 3;
  odd.tie_word_embeddings = false;
  odd.dtype = "F32";
  TinyModelOptions mistral;
  mistral.architecture = "MistralForCausalLM";
  mistral.sliding_window = 20;
  mistral.tie_word_embeddings = false;
  TinyModelOptions qwen2;
  qwen2.architecture = "Qwen2ForCausalLM";
  qwen2.dtype = "F16";
  TinyModelOptions qwen3;
  qwen3.architecture = "Qwen3ForCausalLM";
  qwen3.hidden = 96;
  qwen3.head_dim = 32;
  return {{"llama", llama},
          {"odd", odd},
          {"mistral", mistral},
          {"qwen2", qwen2},
          {"qwen3", qwen3}};
}

class ModelDirs final : public testing::Environment {
 public:
  void SetUp() override {
    root_ = testing::TempDir() + "/cpu_engine_models";
    std::filesystem::remove_all(root_);
    std::filesystem::create_directory(root_);
    for (const auto& [name, options] : Models()) {
      const absl::Status status = WriteTinyModel(Dir(name), options);
      CHECK(status.ok()) << status;
    }
  }
  void TearDown() override { std::filesystem::remove_all(root_); }
  std::string Dir(const std::string& name) const { return root_ + "/" + name; }

 private:
  std::string root_;
};

const ModelDirs* const model_dirs =
    static_cast<ModelDirs*>(testing::AddGlobalTestEnvironment(new ModelDirs));

class CpuEngineTest : public testing::TestWithParam<
                          std::tuple<std::string, const Kernels*, Dtypes>> {
 protected:
  Dtypes dtypes() const { return std::get<2>(GetParam()); }
  std::unique_ptr<Engine> Make(int32_t num_threads = 2,
                               int32_t block_size = 16) const {
    return MakeEngine(dir(), isa(), dtypes(), num_threads, block_size);
  }
  std::string dir() const { return model_dirs->Dir(std::get<0>(GetParam())); }
  std::string isa() const { return std::get<1>(GetParam())->name; }
};

INSTANTIATE_TEST_SUITE_P(
    Models, CpuEngineTest,
    testing::Combine(
        testing::Values("llama", "odd", "mistral", "qwen2", "qwen3"),
        testing::ValuesIn(AvailableKernels().begin(), AvailableKernels().end()),
        testing::Values(Dtypes{"bf16", "bf16"}, Dtypes{"int8", "bf16"},
                        Dtypes{"int4", "int8"})),
    [](const auto& info) {
      return std::get<0>(info.param) + "_" + std::get<1>(info.param)->name +
             "_" + std::get<2>(info.param).weights + "_kv_" +
             std::get<2>(info.param).kv;
    });

// One sequence's next step, alone and at every place of batches of up to 64.
TEST_P(CpuEngineTest, DecodeBatchesOf1To64GiveTheSameLogits) {
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

TEST_P(CpuEngineTest, ChunksGiveTheSameLogits) {
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

TEST_P(CpuEngineTest, ABatchGivesTheSameLogits) {
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

TEST_P(CpuEngineTest, ThreadsAndBlockSizesGiveTheSameLogits) {
  const std::vector<TokenId> tokens = Prompt(100, 3);
  const std::vector<float> expected =
      RunWhole(*Make(), tokens, BlockRange(0, 7));
  for (const int32_t threads : {1, 3}) {
    EXPECT_TRUE(SameBits(
        RunWhole(*Make(threads), tokens, Blocks({5, 3, 9, 1, 0, 2, 8})),
        expected));
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
TEST_P(CpuEngineTest, DecodingEqualsPrefillOfTheTokensSoFar) {
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

TEST_P(CpuEngineTest, LogitsAreCloseToThePortableOnes) {
  const std::vector<TokenId> tokens = Prompt(60, 5);
  const std::vector<float> portable =
      RunWhole(*MakeEngine(dir(), "portable", dtypes()), tokens, BlockRange(0, 4));
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
  CpuEnginePlanTest() : engine_(MakeEngine(model_dirs->Dir("llama"), "", {}, 1)) {
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

TEST_F(CpuEnginePlanTest, ASequenceTwice) {
  plan_.sequences.push_back(plan_.sequences[0]);
  ExpectCheckFails("planned twice");
}

}  // namespace
}  // namespace baton::engine::cpu
