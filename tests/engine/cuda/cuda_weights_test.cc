// The whole engine with weights in fp8, int8 and int4: against the CPU backend
// with the same rounded weights, and against itself.
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "engine/cuda/cuda_engine.h"
#include "engine/cuda/weight_format.h"
#include "tests/engine/cuda/device_fixture.h"
#include "tests/engine/cuda/rounded_weights.h"
#include "tests/support/scratch_dir.h"
#include "tests/support/tiny_model.h"

namespace baton::engine::cuda {
namespace {

using scheduling::StepPlan;
using scheduling::StepResult;
using test::TinyModelOptions;

// The 1e-2 of bfloat16, and that the CPU holds a rounded weight as a bfloat16,
// which is 2^-9 from it at most.
constexpr double kRoundedTolerance = 2e-2;
// The CPU rounds activations to int8 as well.
constexpr double kInt8ActivationTolerance = 3e-2;

// F32, so that a file can say what weights of any format are.
TinyModelOptions Tied() {
  TinyModelOptions options;
  options.dtype = "F32";
  options.hidden = 144;  // two slices and a piece
  options.heads = 4;
  options.kv_heads = 2;
  options.head_dim = 32;
  options.intermediate = 200;
  return options;
}
TinyModelOptions Untied() {
  TinyModelOptions options = Tied();
  options.hidden = 57;
  options.heads = 6;
  options.kv_heads = 3;
  options.head_dim = 10;
  options.intermediate = 101;
  options.tie_word_embeddings = false;
  return options;
}

// Experts whose outputs and inputs are no whole tiles and slices.
TinyModelOptions Mixture() {
  TinyModelOptions options = Untied();
  options.architecture = "MixtralForCausalLM";
  options.experts = 7;
  options.experts_per_token = 3;
  return options;
}

class CudaWeightsTest : public DeviceTest,
                        public testing::WithParamInterface<WeightFormat> {
 protected:
  void SetUp() override {
    DeviceTest::SetUp();
    root_ = absl::StrCat(testing::TempDir(), "/cuda_weights_", getpid(), "_",
                         name());
    std::filesystem::remove_all(root_);
    std::filesystem::create_directory(root_);
  }
  void TearDown() override { std::filesystem::remove_all(root_); }

  std::string name() const { return std::string(WeightFormatName(GetParam())); }

  std::string Model(const std::string& name, const TinyModelOptions& options) {
    const std::string dir = absl::StrCat(root_, "/", name);
    const absl::Status status = test::WriteTinyModel(dir, options);
    CHECK(status.ok()) << status;
    return dir;
  }
  std::unique_ptr<CudaEngine> Make(
      const std::string& dir,
      const ForwardPassOptions& options = SmallPass()) const {
    return MakeCuda(dir, options, /*block_size=*/16, name());
  }

 private:
  std::string root_;
};

INSTANTIATE_TEST_SUITE_P(Formats, CudaWeightsTest,
                         testing::Values(WeightFormat::kFp8,
                                         WeightFormat::kInt8,
                                         WeightFormat::kInt4),
                         [](const auto& param) {
                           return std::string(WeightFormatName(param.param));
                         });

TEST_P(CudaWeightsTest, LogitsAreThoseOfTheRoundedWeights) {
  for (const bool tied : {true, false}) {
    const TinyModelOptions options = tied ? Tied() : Untied();
    const std::string dir = Model("as_it_is", options);
    const std::string rounded = Model("rounded", options);
    RoundModelFile(GetParam(), absl::StrCat(rounded, "/model.safetensors"),
                   tied);
    const auto cuda = Make(dir);
    const auto cpu = MakeCpu(rounded);
    const auto unrounded = MakeCpu(dir);
    for (const int32_t length : {1, 9, 33}) {
      const std::vector<TokenId> tokens = Prompt(length, 3 + length);
      const std::vector<BlockId> blocks = BlockRange(2, 5);
      const std::vector<float> logits = RunWhole(*cuda, tokens, blocks);
      const double error =
          RelativeError(logits, RunWhole(*cpu, tokens, blocks));
      EXPECT_LT(error, kRoundedTolerance) << length << " " << tied;
      // What rounding changes is more, but for int8: that it was done, and as
      // it should be, would be seen.
      const double change =
          RelativeError(logits, RunWhole(*unrounded, tokens, blocks));
      if (GetParam() != WeightFormat::kInt8) {
        EXPECT_GT(change, kRoundedTolerance) << length << " " << tied;
      }
      RecordProperty(
          absl::StrCat(tied ? "tied_" : "untied_", length),
          absl::StrCat(error, ", to weights that were not rounded ", change));
    }
  }
}

// The CPU's own int8 and int4: the same weights and the same name for them.
TEST_P(CudaWeightsTest, WeightsAreThoseOfTheCpuBackend) {
  if (GetParam() == WeightFormat::kFp8) GTEST_SKIP() << "not on CPUs";
  TinyModelOptions mixture = Mixture();
  mixture.tie_word_embeddings = true;
  for (const TinyModelOptions& options : {Tied(), mixture}) {
    const std::string dir = Model("model", options);
    const auto cuda = Make(dir);
    const auto cpu = MakeCpu(dir, name());
    EXPECT_EQ(cuda->model_identity(), cpu->model_identity());
    for (const int32_t length : {1, 33}) {
      const std::vector<TokenId> tokens = Prompt(length, 5);
      const std::vector<BlockId> blocks = BlockRange(0, 3);
      const double error = RelativeError(RunWhole(*cuda, tokens, blocks),
                                         RunWhole(*cpu, tokens, blocks));
      EXPECT_LT(error, kInt8ActivationTolerance)
          << options.architecture << " " << length;
      RecordProperty(absl::StrCat(options.architecture, "_", length),
                     absl::StrCat(error));
    }
  }
}

TEST_P(CudaWeightsTest, ChunksAndPassesGiveTheSameLogits) {
  const std::string dir = Model("model", Tied());
  const auto engine = Make(dir);
  ForwardPassOptions few_rows = SmallPass();
  few_rows.max_rows = 13;
  const std::vector<TokenId> tokens = Prompt(70, 1);
  const std::vector<float> expected =
      RunWhole(*engine, tokens, BlockRange(0, 5));
  EXPECT_TRUE(SameBits(RunWhole(*Make(dir, few_rows), tokens, BlockRange(3, 5)),
                       expected));
  for (const int32_t chunk : {7, 16, 64}) {
    const std::vector<BlockId> blocks = BlockRange(19, 5);
    StepResult result;
    for (int32_t first = 0; first < 70; first += chunk) {
      StepPlan plan;
      plan.sequences = {
          Part(1, tokens, first, std::min(70, first + chunk), blocks)};
      result = engine->Execute(plan, NoHook);
    }
    ASSERT_EQ(result.sampled.size(), 1u);
    EXPECT_TRUE(SameBits(result.sampled[0].logits, expected)) << chunk;
  }
}

// A sequence's next step, in batches for each kind of product kernel, with
// graphs and without.
TEST_P(CudaWeightsTest, BatchesGiveTheSameLogits) {
  const std::vector<TokenId> tokens = Prompt(19, 77);
  const std::vector<TokenId> other = Prompt(19, 78);
  for (const TinyModelOptions& model : {Untied(), Mixture()}) {
    const std::string dir = Model("model", model);
    std::vector<float> expected;
    for (const bool graphs : {false, true}) {
      ForwardPassOptions options = SmallPass();
      options.use_graphs = graphs;
      const auto engine = Make(dir, options);
      const std::vector<BlockId> own = BlockRange(0, 2);
      StepPlan prompt;
      prompt.sequences = {Part(0, tokens, 0, 18, own)};
      engine->Execute(prompt, NoHook);
      for (const int32_t batch : {1, 8, 9, 17, 66}) {
        const std::vector<float> logits =
            RunInBatch(*engine, tokens, own, other, batch);
        if (expected.empty()) expected = logits;
        EXPECT_TRUE(SameBits(logits, expected))
            << model.architecture << " " << batch << " " << graphs;
      }
    }
  }
}

TEST_P(CudaWeightsTest, SaysWhatItHolds) {
  const std::string dir = Model("model", Tied());
  const auto engine = Make(dir);
  EXPECT_THAT(engine->backend_name(), testing::StartsWith("cuda-sm"));
  EXPECT_THAT(engine->backend_name(), testing::EndsWith("-" + name()));
  EXPECT_THAT(engine->model_identity(), testing::HasSubstr("-" + name()));
  EXPECT_EQ(engine->weights_info().dtype, name());
  // Outputs in tiles of 16, inputs in slices of 64, with their scales.
  const auto bytes = [&](int64_t outputs, int64_t inputs) {
    const int64_t padded_outputs = (outputs + 15) / 16 * 16;
    const int64_t slices = (inputs + 63) / 64;
    return GetParam() == WeightFormat::kInt4
               ? padded_outputs * (slices * (32 + 2) + 4)
               : padded_outputs * (slices * 64 + 4);
  };
  const int64_t layer = bytes(4 * 32 + 2 * 2 * 32, 144) + bytes(144, 4 * 32) +
                        bytes(2 * 208, 144) + bytes(144, 200);
  EXPECT_EQ(engine->weights_info().bytes, 2 * layer + bytes(320, 144));
}

// Checkpoints that have the weights as this backend would round them.
class CheckpointTest : public DeviceTest {
 protected:
  // A model, and the same as `store` stores it.
  void Write(const TinyModelOptions& options,
             void (*store)(const std::string& dir)) {
    ASSERT_TRUE(test::WriteTinyModel(plain_, options).ok());
    ASSERT_TRUE(test::WriteTinyModel(checkpoint_, options).ok());
    store(checkpoint_);
  }
  // As `weights`, it is what the plain model is; by itself, what its own
  // numbers are, with the head of the plain model.
  void ExpectTakenAsItIs(const std::string& weights) {
    const auto rounds = MakeCuda(plain_, SmallPass(), 16, weights);
    const auto takes = MakeCuda(checkpoint_, SmallPass(), 16, weights);
    const auto by_itself = MakeCuda(checkpoint_, SmallPass(), 16, "auto");
    const auto reference = MakeCpu(checkpoint_);
    EXPECT_NE(takes->model_identity(), rounds->model_identity());
    const std::string name = weights + "-bf16";
    EXPECT_EQ(by_itself->weights_info().dtype, name);
    EXPECT_THAT(by_itself->backend_name(), testing::EndsWith("-" + name));
    EXPECT_THAT(by_itself->model_identity(),
                testing::HasSubstr("-" + name + "-"));
    const std::vector<TokenId> tokens = Prompt(33, 7);
    const std::vector<BlockId> blocks = BlockRange(2, 5);
    const std::vector<float> of_rounded = RunWhole(*rounds, tokens, blocks);
    EXPECT_TRUE(SameBits(RunWhole(*takes, tokens, blocks), of_rounded));
    const std::vector<float> expected = RunWhole(*reference, tokens, blocks);
    const std::vector<float> logits = RunWhole(*by_itself, tokens, blocks);
    EXPECT_LT(RelativeError(logits, expected), kRoundedTolerance);
    // What rounding the head changes.
    EXPECT_GT(RelativeError(of_rounded, expected), kRoundedTolerance);
  }

  const test::ScratchDir scratch_;
  const std::string plain_ = scratch_.path() + "/plain";
  const std::string checkpoint_ = scratch_.path() + "/checkpoint";
};

TEST_F(CheckpointTest, Fp8IsTakenAsItIs) {
  for (const TinyModelOptions& options : {Tied(), Untied(), Mixture()}) {
    ASSERT_NO_FATAL_FAILURE(Write(options, StoreAsFp8));
    ASSERT_NO_FATAL_FAILURE(ExpectTakenAsItIs("fp8"));
  }
}

TEST_F(CheckpointTest, GptqIsTakenAsItIs) {
  TinyModelOptions untied = Tied();
  untied.tie_word_embeddings = false;
  untied.architecture = "Qwen2ForCausalLM";
  TinyModelOptions mixture = Tied();
  mixture.architecture = "Qwen3MoeForCausalLM";
  mixture.first_layer_dense = true;
  mixture.experts = 8;
  for (const TinyModelOptions& options : {Tied(), untied, mixture}) {
    ASSERT_NO_FATAL_FAILURE(Write(options, StoreAsGptq));
    ASSERT_NO_FATAL_FAILURE(ExpectTakenAsItIs("int4"));
  }
}

}  // namespace
}  // namespace baton::engine::cuda
