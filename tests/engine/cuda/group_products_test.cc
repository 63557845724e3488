// Engines whose large products run on tensor cores that work for groups of
// warps: the answers of the other kernels, to the bit.
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/engine/cuda/device_fixture.h"
#include "tests/support/scratch_dir.h"
#include "tests/support/tiny_model.h"
#if defined(BATON_EMULATED_DEVICE)
#include "tests/support/emulated_device/fibers.h"
#endif

namespace baton::engine::cuda {
namespace {

using scheduling::StepPlan;
using scheduling::StepResult;

class GroupProductsTest : public DeviceTest {
 protected:
  void SetUp() override {
    DeviceTest::SetUp();
    if (IsSkipped()) return;
    if (!kernels().group) GTEST_SKIP() << "the device has no such cores";
    before_ = Runs();
  }

  // No inputs of its layers are padded, as those of models that people use.
  static test::TinyModelOptions Model() {
    test::TinyModelOptions model;
    model.hidden = 128;
    model.heads = 8;
    model.kv_heads = 4;
    model.intermediate = 192;
    model.tie_word_embeddings = false;
    return model;
  }

  std::string Write(const test::TinyModelOptions& model) {
    const std::string dir = scratch_.path() + "/model";
    CHECK_OK(test::WriteTinyModel(dir, model));
    return dir;
  }

  static std::unique_ptr<CudaEngine> Make(EngineOptions options, bool groups) {
    ForwardPassOptions pass = SmallPass();
    pass.kernels->group = groups;
    pass.kernels->flow = groups;
    auto engine = CudaEngine::Create(options, pass);
    CHECK_OK(engine.status());
    return *std::move(engine);
  }

  static int64_t Runs() {
#if defined(BATON_EMULATED_DEVICE)
    return emulated::TimesRun("matmul (groups of warps)") +
           emulated::TimesRun("matmul (flow)");
#else
    return 0;
#endif
  }
  // That many products ran so since the last call; nobody counts on GPUs.
  void ExpectRuns(int64_t count) {
    if (emulated()) {
      EXPECT_EQ(Runs() - before_, count);
    }
    before_ = Runs();
  }

 private:
  static void CHECK_OK(const absl::Status& status) {
    CHECK(status.ok()) << status;
  }
  const test::ScratchDir scratch_;
  int64_t before_ = 0;
};

TEST_F(GroupProductsTest, LogitsAreThoseOfOtherKernels) {
  test::TinyModelOptions qwen3 = Model();
  qwen3.architecture = "Qwen3ForCausalLM";
  qwen3.head_dim = 32;
  for (const test::TinyModelOptions& model : {Model(), qwen3}) {
    const std::string dir = Write(model);
    for (const std::string weights : {"bf16", "fp8", "int8", "int4"}) {
      if (emulated() && weights != "bf16" && model.head_dim != 16) continue;
      EngineOptions options = OptionsFor(dir);
      options.weights = weights;
      const auto others = Make(options, false);
      const auto groups = Make(options, true);
      // 17 rows are the fewest, of up to 64 that a block has; of more, 65 and
      // 130.
      for (const int32_t length : {16, 17, 64, 65, 130}) {
        const std::vector<TokenId> tokens = Prompt(length, length);
        const std::vector<BlockId> blocks = BlockRange(2, 9);
        const std::vector<float> expected = RunWhole(*others, tokens, blocks);
        ExpectRuns(0);
        EXPECT_TRUE(SameBits(RunWhole(*groups, tokens, blocks), expected))
            << model.architecture << " " << weights << " " << length;
        // Two layers of four products, of which the last three are of the one
        // row that has logits.
        // With four bits 17 rows are too few.
        ExpectRuns(length < (weights == "int4" ? 33 : 17) ? 0 : 5);
      }
    }
  }
}

// Rows of one pass, then of another with the other order of inputs: nothing of
// the first is left in what the second reads.
TEST_F(GroupProductsTest, PassesOfManyAndOfFewRowsTakeTurns) {
  const std::string dir = Write(Model());
  const std::vector<TokenId> tokens = Prompt(150, 9);
  const std::vector<BlockId> blocks = BlockRange(1, 10);
  std::vector<float> expected;
  for (const bool groups : {false, true}) {
    const auto engine = Make(OptionsFor(dir), groups);
    StepResult result;
    int32_t first = 0;
    for (const int32_t end : {70, 90, 91, 149, 150}) {
      StepPlan plan;
      plan.sequences = {Part(1, tokens, first, end, blocks)};
      result = engine->Execute(plan, NoHook);
      first = end;
    }
    ASSERT_EQ(result.sampled.size(), 1u);
    if (!groups) expected = result.sampled[0].logits;
    EXPECT_TRUE(SameBits(result.sampled[0].logits, expected));
  }
  // Of the first, the second and the fourth pass: no row of these has logits,
  // so that the last layer ends with keys and values.
  ExpectRuns(3 * 5);
}

// More rows with logits than are made at a time, and fewer in the last piece.
TEST_F(GroupProductsTest, LogitsOfAllRows) {
  const std::string dir = Write(Model());
  const std::vector<TokenId> tokens = Prompt(101, 5);
  const std::vector<BlockId> blocks = BlockRange(0, 7);
  std::vector<float> expected;
  for (const bool groups : {false, true}) {
    const auto engine = Make(OptionsFor(dir), groups);
    StepPlan plan;
    plan.sequences = {Part(1, tokens, 0, 100, blocks)};
    plan.sequences[0].targets = absl::MakeConstSpan(tokens).subspan(1);
    const StepResult result = engine->Execute(plan, NoHook);
    ASSERT_EQ(result.target_logprobs.size(), 1u);
    if (!groups) expected = result.target_logprobs[0];
    EXPECT_TRUE(SameBits(result.target_logprobs[0], expected));
  }
  ExpectRuns(8);
}

// Attention on the same cores, by itself: of several sequences, with a window
// and without, in a pass that is long enough and in one that is not.
TEST_F(GroupProductsTest, AttentionByGroupsGivesTheSameLogits) {
  test::TinyModelOptions model = Model();
  model.architecture = "MistralForCausalLM";
  model.head_dim = 64;
  model.heads = 4;
  model.kv_heads = 2;
  for (const int32_t window : {0, 40}) {
    model.sliding_window.reset();
    if (window > 0) model.sliding_window = window;
    const std::string dir = Write(model);
    const std::vector<TokenId> tokens = Prompt(110, 4);
    const std::vector<BlockId> blocks[] = {BlockRange(0, 7), BlockRange(7, 7)};
    std::vector<float> expected;
    for (const bool groups : {false, true}) {
      ForwardPassOptions pass = SmallPass();
      pass.kernels = DeviceKernels();
      pass.kernels->group_attention = groups;
      auto engine = CudaEngine::Create(OptionsFor(dir), pass);
      ASSERT_TRUE(engine.ok()) << engine.status();
#if defined(BATON_EMULATED_DEVICE)
      const int64_t before = emulated::TimesRun("attention (groups of warps)");
#endif
      std::vector<float> logits;
      for (const auto& [first, end] :
           {std::pair(0, 40), std::pair(40, 100), std::pair(100, 110)}) {
        StepPlan plan;
        plan.sequences = {Part(1, tokens, first, end, blocks[0]),
                          Part(2, tokens, first, end, blocks[1])};
        const StepResult result = (*engine)->Execute(plan, NoHook);
        for (const auto& sampled : result.sampled) {
          logits.insert(logits.end(), sampled.logits.begin(),
                        sampled.logits.end());
        }
      }
#if defined(BATON_EMULATED_DEVICE)
      // In the first layer of the first two steps, which end with the last
      // one's keys and values.
      EXPECT_EQ(emulated::TimesRun("attention (groups of warps)") - before,
                groups ? 2 : 0);
#endif
      ASSERT_FALSE(logits.empty());
      if (!groups) expected = logits;
      EXPECT_TRUE(SameBits(logits, expected)) << window;
    }
  }
}

TEST_F(GroupProductsTest, PaddedModelsGoWithoutThem) {
  test::TinyModelOptions padded = Model();
  padded.intermediate = 190;
  const auto engine = Make(OptionsFor(Write(padded)), true);
  RunWhole(*engine, Prompt(70, 1), BlockRange(0, 5));
  ExpectRuns(0);
}

// Of 80 rows and more, which go to two of three experts each, an expert has
// more than 48: theirs, too. Two devices send what they have of them in the
// order of rows.
TEST_F(GroupProductsTest, ExpertsHaveThemToo) {
  test::TinyModelOptions model = Model();
  model.architecture = "Qwen3MoeForCausalLM";
  model.experts = 3;
  const std::string dir = Write(model);
  const bool two_devices = OpenDevice(1).ok();
  UseDevice(0);
  for (const std::string weights : {"bf16", "int4"}) {
    EngineOptions options = OptionsFor(dir);
    options.weights = weights;
    const auto others = Make(options, false);
    const auto groups = Make(options, true);
    options.tensor_parallel = two_devices ? 2 : 1;
    const auto several = Make(options, true);
    for (const int32_t length : {66, 80, 200}) {
      const std::vector<TokenId> tokens = Prompt(length, length);
      const std::vector<BlockId> blocks = BlockRange(2, 13);
      const std::vector<float> expected = RunWhole(*others, tokens, blocks);
#if defined(BATON_EMULATED_DEVICE)
      const auto runs = [] {
        return emulated::TimesRun("experts (groups of warps)");
      };
      const int64_t before = runs();
#endif
      EXPECT_TRUE(SameBits(RunWhole(*groups, tokens, blocks), expected))
          << weights << " " << length;
#if defined(BATON_EMULATED_DEVICE)
      // Two products of the first layer; the last one's have one row.
      EXPECT_EQ(runs() - before, length < 80 ? 0 : 2);
#endif
      EXPECT_TRUE(SameBits(RunWhole(*several, tokens, blocks), expected))
          << weights << " " << length;
    }
  }
}

// Queries are made of what kernels of its own left in the order of these
// products, and so is what the output projection takes; two devices send that
// in the order of elements.
TEST_F(GroupProductsTest, LatentAttentionHasThemToo) {
  test::TinyModelOptions model = Model();
  model.architecture = "DeepseekV3ForCausalLM";
  model.query_rank = 64;
  model.experts = 4;
  model.first_layer_dense = true;
  EngineOptions options = OptionsFor(Write(model));
  const auto others = Make(options, false);
  const auto groups = Make(options, true);
  const bool two_devices = OpenDevice(1).ok();
  UseDevice(0);
  options.tensor_parallel = two_devices ? 2 : 1;
  const auto several = Make(options, true);
  for (const int32_t length : {16, 17, 65, 130}) {
    const std::vector<TokenId> tokens = Prompt(length, length);
    const std::vector<BlockId> blocks = BlockRange(2, 9);
    const std::vector<float> expected = RunWhole(*others, tokens, blocks);
    ExpectRuns(0);
    EXPECT_TRUE(SameBits(RunWhole(*groups, tokens, blocks), expected))
        << length;
    // Of the first layer all five but those of heads, of the last one what
    // makes keys and queries.
    const int64_t runs = length < 17 ? 0 : 5 + 2;
    ExpectRuns(runs);
    EXPECT_TRUE(SameBits(RunWhole(*several, tokens, blocks), expected))
        << length;
    ExpectRuns((two_devices ? 2 : 1) * runs);
  }
}

TEST_F(GroupProductsTest, SeveralDevices) {
  if (!OpenDevice(1).ok()) GTEST_SKIP() << "there is one device";
  UseDevice(0);
  EngineOptions options = OptionsFor(Write(Model()));
  const std::vector<TokenId> tokens = Prompt(70, 3);
  const std::vector<BlockId> blocks = BlockRange(2, 5);
  const std::vector<float> expected =
      RunWhole(*Make(options, false), tokens, blocks);
  options.tensor_parallel = 2;
  EXPECT_TRUE(
      SameBits(RunWhole(*Make(options, true), tokens, blocks), expected));
  ExpectRuns(2 * 5);
}

}  // namespace
}  // namespace baton::engine::cuda
