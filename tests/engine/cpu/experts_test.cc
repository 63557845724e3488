// Mixtures of experts, beyond what every model is tested for.
#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/json.h"
#include "engine/cpu/forward_pass.h"
#include "engine/weights.h"
#include "tests/engine/cpu/engine_fixture.h"
#include "tests/engine/model_dir.h"
#include "tests/support/tiny_model.h"

namespace baton::engine::cpu {
namespace {

using scheduling::StepPlan;
using scheduling::StepResult;

std::unique_ptr<Engine> EngineOf(const std::string& dir, const char* weights) {
  return MakeEngine(dir, /*isa=*/"", Dtypes{weights, "bf16"});
}

// What a mixture made of one network looks like: each of `experts` is the
// network of a Qwen3 model, and the router is as the caller says.
class MixtureOfOne final {
 public:
  MixtureOfOne(int32_t experts, int32_t per_token, float router) {
    test::TinyModelOptions tiny;
    tiny.architecture = "Qwen3ForCausalLM";
    CHECK(test::WriteTinyModel(dense_.path(), tiny).ok());
    nlohmann::json config =
        nlohmann::json::parse(std::ifstream(dense_.File("config.json")));
    const ModelConfig dense = *LoadModelConfig(dense_.path());
    const ModelWeights weights = *LoadModelWeights(dense_.path(), dense);
    std::vector<TestTensor> tensors;
    for (const TensorView* view : weights.AllTensors()) {
      TestTensor tensor;
      tensor.name = std::string(view->name);
      tensor.dtype = DTypeName(view->dtype);
      tensor.shape = view->shape;
      tensor.bytes.assign(reinterpret_cast<const char*>(view->bytes.data()),
                          view->bytes.size());
      if (tensor.name.find(".mlp.") == std::string::npos) {
        tensors.push_back(tensor);
        continue;
      }
      for (int32_t i = 0; i < experts; ++i) {
        TestTensor expert = tensor;
        expert.name = absl::StrReplaceAll(
            tensor.name, {{".mlp.", absl::StrCat(".mlp.experts.", i, ".")}});
        tensors.push_back(expert);
      }
    }
    for (int32_t layer = 0; layer < dense.num_layers; ++layer) {
      TestTensor gate;
      gate.name = absl::StrCat("model.layers.", layer, ".mlp.gate.weight");
      gate.dtype = "F32";
      gate.shape = {experts, dense.hidden_size};
      for (int32_t i = 0; i < experts * dense.hidden_size; ++i) {
        const float value = router * static_cast<float>(i * 37 % 64 - 32);
        gate.bytes.append(reinterpret_cast<const char*>(&value), sizeof(value));
      }
      tensors.push_back(gate);
    }
    config["architectures"] = {"Qwen3MoeForCausalLM"};
    config["num_experts"] = experts;
    config["num_experts_per_tok"] = per_token;
    config["moe_intermediate_size"] = config["intermediate_size"];
    config["norm_topk_prob"] = true;
    mixture_.Write("config.json", config.dump());
    mixture_.Write("model.safetensors", Safetensors(tensors));
  }

  const std::string& dense() const { return dense_.path(); }
  const std::string& mixture() const { return mixture_.path(); }

 private:
  const ModelDir dense_;
  const ModelDir mixture_;
};

TEST(ExpertsTest, OneOfManyAlikeIsTheNetworkItself) {
  const MixtureOfOne models(/*experts=*/6, /*per_token=*/1, /*router=*/0.01f);
  const std::vector<TokenId> tokens = Prompt(40, 3);
  for (const char* const weights : {"bf16", "int8", "int4"}) {
    const auto dense = EngineOf(models.dense(), weights);
    const auto mixture = EngineOf(models.mixture(), weights);
    EXPECT_TRUE(SameBits(RunWhole(*mixture, tokens, BlockRange(0, 3)),
                         RunWhole(*dense, tokens, BlockRange(0, 3))))
        << weights;
  }
}

// But for how their shares of one are rounded.
TEST(ExpertsTest, ManyAlikeAreTheNetworkItself) {
  const MixtureOfOne models(/*experts=*/6, /*per_token=*/4, /*router=*/0.01f);
  const std::vector<TokenId> tokens = Prompt(40, 4);
  const std::vector<float> expected =
      RunWhole(*EngineOf(models.dense(), "bf16"), tokens, BlockRange(0, 3));
  const std::vector<float> found =
      RunWhole(*EngineOf(models.mixture(), "bf16"), tokens, BlockRange(0, 3));
  double squares = 0, errors = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    squares += double{expected[i]} * expected[i];
    errors += std::pow(double{found[i]} - expected[i], 2);
  }
  // Of a bfloat16, the last bit is 1/256.
  EXPECT_LT(std::sqrt(errors / squares), 1.0 / 256);
}

TEST(ExpertsTest, NumbersThatAreNoneStayInTheAnswer) {
  for (const float router : {std::numeric_limits<float>::quiet_NaN(),
                             std::numeric_limits<float>::infinity()}) {
    const MixtureOfOne models(/*experts=*/6, /*per_token=*/4, router);
    const auto engine = EngineOf(models.mixture(), "bf16");
    const std::vector<TokenId> tokens = Prompt(20, 5);
    const std::vector<BlockId> blocks = BlockRange(0, 2);
    StepPlan plan;
    plan.sequences = {Part(1, tokens, 0, 20, blocks)};
    const StepResult result = engine->Execute(plan, NoHook);
    ASSERT_EQ(result.sampled.size(), 1u);
    EXPECT_FALSE(result.sampled[0].ok);
  }
}

TEST(ExpertsTest, StepsSayWhatTheyRead) {
  test::TinyModelOptions tiny;
  tiny.architecture = "MixtralForCausalLM";
  const ModelDir dir;
  ASSERT_TRUE(test::WriteTinyModel(dir.path(), tiny).ok());
  const auto engine = EngineOf(dir.path(), "bf16");
  const std::vector<TokenId> tokens = Prompt(41, 7);
  const std::vector<BlockId> blocks = BlockRange(0, 3);
  StepPlan plan;
  plan.sequences = {Part(1, tokens, 0, 40, blocks)};
  StepResult result = engine->Execute(plan, NoHook);
  // The second layer has nobody to compute for, as nothing is sampled.
  EXPECT_EQ(result.expert_rows, 40 * tiny.experts_per_token);
  EXPECT_GE(result.expert_reads, tiny.experts_per_token);
  EXPECT_LE(result.expert_reads, tiny.experts);
  plan.sequences = {Part(1, tokens, 40, 41, blocks)};
  result = engine->Execute(plan, NoHook);
  EXPECT_EQ(result.expert_rows, 2 * tiny.experts_per_token);
  EXPECT_EQ(result.expert_reads, 2 * tiny.experts_per_token);
  // A shared one is read, too.
  tiny.architecture = "Glm4MoeForCausalLM";
  const ModelDir shares;
  ASSERT_TRUE(test::WriteTinyModel(shares.path(), tiny).ok());
  const auto shared = EngineOf(shares.path(), "bf16");
  result = shared->Execute(plan, NoHook);
  EXPECT_EQ(result.expert_rows, 2 * (tiny.experts_per_token + 1));
  EXPECT_EQ(result.expert_reads, 2 * (tiny.experts_per_token + 1));
  const auto dense = EngineOf(EngineModelDir("llama"), "bf16");
  EXPECT_EQ(dense->Execute(plan, NoHook).expert_rows, 0);
}

// Experts compute some rows at a time.
TEST(ExpertsTest, AStepOfManyRowsIsManySteps) {
  constexpr int32_t kTokens = 2 * kExpertRows + 70;
  test::TinyModelOptions tiny;
  tiny.architecture = "MixtralForCausalLM";
  tiny.max_position = 4096;
  const ModelDir dir;
  ASSERT_TRUE(test::WriteTinyModel(dir.path(), tiny).ok());
  const std::vector<TokenId> tokens = Prompt(kTokens, 6);
  const std::vector<BlockId> blocks = BlockRange(0, kTokens / 16 + 1);
  for (const char* const weights : {"bf16", "int8"}) {
    const auto engine = EngineOf(dir.path(), weights);
    const std::vector<float> expected = RunWhole(*engine, tokens, blocks);
    StepResult result;
    for (int32_t first = 0; first < kTokens; first += 300) {
      StepPlan plan;
      plan.sequences = {
          Part(1, tokens, first, std::min(kTokens, first + 300), blocks)};
      result = engine->Execute(plan, NoHook);
    }
    ASSERT_EQ(result.sampled.size(), 1u);
    EXPECT_TRUE(SameBits(result.sampled[0].logits, expected)) << weights;
  }
}

}  // namespace
}  // namespace baton::engine::cpu
