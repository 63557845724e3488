#include "engine/weights.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/log.h"
#include "tests/engine/model_dir.h"

namespace baton::engine {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

ModelConfig ConfigOf(const json& config) {
  ModelDir dir;
  dir.Write("config.json", config.dump());
  auto loaded = LoadModelConfig(dir.path());
  CHECK(loaded.ok()) << loaded.status();
  return *loaded;
}

absl::StatusOr<ModelWeights> Load(const std::vector<TestTensor>& tensors,
                                  const json& config) {
  ModelDir dir;
  dir.Write("model.safetensors", Safetensors(tensors));
  return LoadModelWeights(dir.path(), ConfigOf(config));
}

TestTensor& Named(std::vector<TestTensor>& tensors, const std::string& name) {
  const auto it =
      std::find_if(tensors.begin(), tensors.end(),
                   [&](const TestTensor& t) { return t.name == name; });
  CHECK(it != tensors.end()) << name;
  return *it;
}

TEST(WeightsTest, FindsEveryTensor) {
  const auto weights = Load(LlamaTensors(), LlamaConfigJson());
  ASSERT_TRUE(weights.ok()) << weights.status();
  EXPECT_THAT(weights->embedding.values.shape, ElementsAre(32, 16));
  ASSERT_EQ(weights->layers.size(), 2u);
  EXPECT_EQ(weights->layers[1].k_proj.name,
            "model.layers.1.self_attn.k_proj.weight");
  EXPECT_THAT(weights->layers[1].k_proj.values.shape, ElementsAre(8, 16));
  EXPECT_THAT(weights->layers[0].down_proj.values.shape, ElementsAre(16, 24));
  EXPECT_FALSE(weights->layers[0].q_bias.has_value());
  ASSERT_TRUE(weights->lm_head.has_value());
  EXPECT_EQ(weights->AllTensors().size(), LlamaTensors().size());
}

TEST(WeightsTest, ViewsOutliveTheDirectory) {
  // Load removed its directory; the mapping keeps the bytes.
  const auto weights = Load(LlamaTensors(), LlamaConfigJson());
  ASSERT_TRUE(weights.ok()) << weights.status();
  const ModelWeights copy = *weights;
  std::vector<TestTensor> tensors = LlamaTensors();
  const std::string& expected =
      Named(tensors, "model.layers.1.mlp.up_proj.weight").bytes;
  const TensorView& view = copy.layers[1].up_proj.values;
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(view.bytes.data()),
                        view.bytes.size()),
            expected);
}

TEST(WeightsTest, TiedModelsIgnoreTheHead) {
  json config = LlamaConfigJson();
  config["tie_word_embeddings"] = true;
  std::vector<TestTensor> tensors = LlamaTensors();
  auto weights = Load(tensors, config);
  ASSERT_TRUE(weights.ok()) << weights.status();
  EXPECT_FALSE(weights->lm_head.has_value());
  tensors.pop_back();
  weights = Load(tensors, config);
  ASSERT_TRUE(weights.ok()) << weights.status();
}

TEST(WeightsTest, EveryMissingTensorIsNamed) {
  for (const TestTensor& missing : LlamaTensors()) {
    std::vector<TestTensor> tensors = LlamaTensors();
    std::erase_if(tensors,
                  [&](const TestTensor& t) { return t.name == missing.name; });
    const auto weights = Load(tensors, LlamaConfigJson());
    EXPECT_EQ(weights.status().code(), absl::StatusCode::kNotFound);
    EXPECT_THAT(weights.status().message(),
                AllOf(HasSubstr(missing.name), HasSubstr("model.safetensors")));
  }
}

TEST(WeightsTest, EveryWrongShapeIsNamed) {
  for (const TestTensor& wrong : LlamaTensors()) {
    std::vector<TestTensor> tensors = LlamaTensors();
    TestTensor& tensor = Named(tensors, wrong.name);
    // The same bytes in another shape.
    if (tensor.shape.size() == 2) {
      tensor.shape = {tensor.shape[0] * tensor.shape[1]};
    } else {
      tensor.shape = {tensor.shape[0], 1};
    }
    const auto weights = Load(tensors, LlamaConfigJson());
    EXPECT_EQ(weights.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(weights.status().message(),
                AllOf(HasSubstr(wrong.name), HasSubstr("model.safetensors"),
                      HasSubstr(ShapeString(tensor.shape)),
                      HasSubstr(ShapeString(wrong.shape))));
  }
}

TEST(WeightsTest, QuantizedTensorsAreRefused) {
  std::vector<TestTensor> tensors = LlamaTensors();
  TestTensor& tensor = Named(tensors, "model.layers.0.mlp.up_proj.weight");
  tensor.dtype = "I8";
  tensor.bytes.resize(tensor.bytes.size() / 4);
  const auto weights = Load(tensors, LlamaConfigJson());
  EXPECT_EQ(weights.status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(weights.status().message(),
              AllOf(HasSubstr(tensor.name), HasSubstr("I8")));
}

TEST(WeightsTest, ManyMoreLayersThanTheFileHasEndAtTheFirst) {
  json config = LlamaConfigJson();
  config["num_hidden_layers"] = 4096;
  const auto weights = Load(LlamaTensors(), config);
  EXPECT_EQ(weights.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(weights.status().message(), HasSubstr("model.layers.2."));
}

TEST(WeightsTest, OptionalTensorsOfTheGoldenModels) {
  const auto load = [](const char* name) {
    const auto config = LoadModelConfig(GoldenDir(name));
    CHECK(config.ok()) << config.status();
    auto weights = LoadModelWeights(GoldenDir(name), *config);
    CHECK(weights.ok()) << weights.status();
    return *std::move(weights);
  };
  const ModelWeights linear = load("llama_linear");
  EXPECT_EQ(linear.embedding.values.dtype, DType::kF32);
  EXPECT_TRUE(linear.layers[1].q_bias && linear.layers[1].o_bias &&
              linear.layers[1].gate_bias && linear.layers[1].down_bias);
  const ModelWeights qwen2 = load("qwen2");
  EXPECT_EQ(qwen2.embedding.values.dtype, DType::kF16);
  EXPECT_TRUE(qwen2.layers[0].k_bias.has_value());
  EXPECT_FALSE(qwen2.layers[0].o_bias.has_value());
  EXPECT_FALSE(qwen2.lm_head.has_value());
  const ModelWeights qwen3 = load("qwen3");
  ASSERT_TRUE(qwen3.layers[0].q_norm.has_value());
  EXPECT_THAT(qwen3.layers[0].q_norm->shape, ElementsAre(32));
  const ModelWeights mistral = load("mistral");
  EXPECT_THAT(std::string(mistral.embedding.values.file), HasSubstr("-of-"));
  const ModelWeights mixtral = load("mixtral");
  ASSERT_TRUE(mixtral.layers[1].expert_router.has_value());
  EXPECT_EQ(mixtral.layers[1].experts.size(),
            static_cast<size_t>(mixtral.layers[1].expert_router->rows));
  const ModelWeights qwen3_moe = load("qwen3_moe");
  EXPECT_FALSE(qwen3_moe.layers[0].experts.empty());
  EXPECT_TRUE(qwen3_moe.layers[1].experts.empty());
  EXPECT_FALSE(qwen3_moe.layers[1].expert_router.has_value());
  EXPECT_GT(qwen3_moe.layers[1].gate_proj.rows, 0);
  EXPECT_FALSE(qwen3_moe.layers[0].choice_bias.has_value());
  const ModelWeights glm4_moe = load("glm4_moe");
  EXPECT_TRUE(glm4_moe.layers[0].experts.empty());
  EXPECT_FALSE(glm4_moe.layers[0].choice_bias.has_value());
  EXPECT_EQ(glm4_moe.layers[1].expert_router->rows, 7);
  EXPECT_THAT(glm4_moe.layers[1].choice_bias->shape, ElementsAre(7));
  ASSERT_EQ(glm4_moe.layers[1].experts.size(), 8u);
  EXPECT_THAT(glm4_moe.layers[1].experts[7].down_proj.name,
              HasSubstr("shared_experts.down_proj"));
  const ModelWeights phi3 = load("phi3");
  const LayerWeights& layer = phi3.layers[2];
  EXPECT_EQ(layer.q_proj.rows, 96);
  EXPECT_EQ(layer.k_proj.rows, 32);
  EXPECT_EQ(layer.v_proj.rows, 32);
  EXPECT_EQ(layer.q_proj.values.bytes.end(), layer.k_proj.values.bytes.begin());
  EXPECT_EQ(layer.k_proj.values.bytes.end(), layer.v_proj.values.bytes.begin());
  EXPECT_EQ(layer.gate_proj.values.bytes.end(),
            layer.up_proj.values.bytes.begin());
  EXPECT_THAT(layer.up_proj.name, HasSubstr("gate_up_proj"));
  const ModelWeights gpt_oss = load("gpt_oss");
  EXPECT_THAT(gpt_oss.layers[1].sinks->shape, ElementsAre(6));
  EXPECT_THAT(gpt_oss.layers[1].router_bias->shape, ElementsAre(6));
  ASSERT_EQ(gpt_oss.layers[1].experts.size(), 6u);
  const ExpertWeights& expert = gpt_oss.layers[1].experts[5];
  EXPECT_EQ(expert.gate_proj.encoding, WeightEncoding::kMxfp4);
  EXPECT_EQ(expert.up_proj.rows, 96);
  EXPECT_EQ(expert.up_proj.columns, 64);
  EXPECT_EQ(expert.down_proj.rows, 64);
  EXPECT_THAT(expert.gate_up_bias->shape, ElementsAre(192));
  EXPECT_THAT(expert.down_bias->shape, ElementsAre(64));
  EXPECT_FALSE(mixtral.layers[1].sinks.has_value());
  EXPECT_FALSE(mixtral.layers[1].experts[0].down_bias.has_value());
  load("llama2");
  load("llama3");
}

TEST(WeightsTest, SeveralMatricesInOneAreReadUnquantized) {
  json config = json::parse(std::ifstream(GoldenDir("phi3") + "/config.json"));
  const auto error = [&] {
    const ModelDir dir;
    dir.Write("config.json", config.dump());
    std::filesystem::copy_file(GoldenDir("phi3") + "/model.safetensors",
                               dir.File("model.safetensors"));
    const auto loaded = LoadModelConfig(dir.path());
    CHECK(loaded.ok()) << loaded.status();
    const auto weights = LoadModelWeights(dir.path(), *loaded);
    return std::string(weights.status().message());
  };
  EXPECT_EQ(error(), "");
  config["num_key_value_heads"] = 3;
  EXPECT_THAT(error(), HasSubstr("self_attn.qkv_proj.weight"));
  config["num_key_value_heads"] = 2;
  config["intermediate_size"] = 71;
  EXPECT_THAT(error(), HasSubstr("mlp.gate_up_proj.weight"));
  config["intermediate_size"] = 72;
  config["quantization_config"] = {
      {"quant_method", "gptq"}, {"bits", 4}, {"group_size", 16}};
  EXPECT_THAT(error(), AllOf(HasSubstr("self_attn.qkv_proj"),
                             HasSubstr("several matrices in one")));
}

}  // namespace
}  // namespace baton::engine
