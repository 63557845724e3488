// Latent attention: what config.json and the tensors of DeepSeek's models say,
// and what is made of them.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <fstream>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/kv_layout.h"
#include "engine/latent_config.h"
#include "engine/matrix_views.h"
#include "engine/model_identity.h"
#include "engine/rope_config.h"
#include "tests/engine/grouped_matrix.h"
#include "tests/engine/model_dir.h"

namespace baton::engine::latent_test {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

json GoldenConfig(const char* name) {
  return json::parse(std::ifstream(GoldenDir(name) + "/config.json"));
}

// What the file of DeepSeek-V3 says of its shape.
json V3Config() {
  return {{"architectures", {"DeepseekV3ForCausalLM"}},
          {"model_type", "deepseek_v3"},
          {"hidden_size", 7168},
          {"num_hidden_layers", 61},
          {"num_attention_heads", 128},
          {"num_key_value_heads", 128},
          {"intermediate_size", 18432},
          {"vocab_size", 129280},
          {"max_position_embeddings", 163840},
          {"rope_theta", 10000},
          {"rms_norm_eps", 1e-6},
          {"rope_scaling",
           {{"type", "yarn"},
            {"factor", 40},
            {"beta_fast", 32},
            {"beta_slow", 1},
            {"mscale", 1.0},
            {"mscale_all_dim", 1.0},
            {"original_max_position_embeddings", 4096}}},
          {"n_group", 8},
          {"topk_group", 4}};
}

TEST(LatentConfigTest, ReadsV3) {
  const ModelConfig config = MustLoadConfig(V3Config());
  ASSERT_TRUE(config.IsLatent());
  EXPECT_EQ(config.latent.rank, 512);
  EXPECT_EQ(config.latent.query_rank, 1536);
  EXPECT_EQ(config.latent.nope_dim, 128);
  EXPECT_EQ(config.latent.rope_dim, 64);
  EXPECT_EQ(config.latent.value_dim, 128);
  EXPECT_EQ(config.num_heads, 128);
  // What attention and KV see.
  EXPECT_EQ(config.num_kv_heads, 1);
  EXPECT_EQ(config.head_dim, 576);
  EXPECT_EQ(config.RotaryDim(), 64);
  EXPECT_EQ(config.AttentionSize(), 128 * 128);
  EXPECT_TRUE(config.rope_interleaved);
  EXPECT_EQ(config.max_position, 163840);
  EXPECT_FALSE(config.sliding_window.has_value());
  // The magnitude's parts are of one weight: what turns is not scaled, scores
  // are.
  EXPECT_DOUBLE_EQ(config.rope_scaling.attention_factor, 1.0);
  const double magnitude = 0.1 * std::log(40.0) + 1;
  EXPECT_NEAR(config.ScoreScale(), magnitude * magnitude / std::sqrt(192.0),
              1e-12);
  const ExpertsConfig& experts = config.experts;
  EXPECT_EQ(experts.count, 256);
  EXPECT_EQ(experts.per_token, 8);
  EXPECT_EQ(experts.shared, 1);
  EXPECT_EQ(experts.intermediate_size, 2048);
  EXPECT_EQ(experts.groups, 8);
  EXPECT_EQ(experts.chosen_groups, 4);
  EXPECT_EQ(experts.score, ExpertsConfig::Score::kSigmoid);
  EXPECT_TRUE(experts.choice_bias && experts.normalized);
  EXPECT_EQ(experts.scale, 2.5);
  EXPECT_FALSE(config.LayerHasExperts(2));
  EXPECT_TRUE(config.LayerHasExperts(3));
}

TEST(LatentConfigTest, ReadsV2) {
  const ModelConfig config = MustLoadConfig(GoldenConfig("deepseek_v2"));
  EXPECT_EQ(config.latent.query_rank, 0);
  EXPECT_EQ(config.latent.query_dim(), 28);
  EXPECT_EQ(config.head_dim, 40);
  EXPECT_TRUE(config.rope_interleaved);
  EXPECT_NEAR(config.ScoreScale(), 1 / std::sqrt(28.0), 1e-12);
  const ExpertsConfig& experts = config.experts;
  EXPECT_EQ(experts.score, ExpertsConfig::Score::kSoftmax);
  EXPECT_EQ(experts.shared, 2);
  EXPECT_EQ(experts.groups, 4);
  EXPECT_EQ(experts.scale, 2.5);
  EXPECT_FALSE(experts.normalized || experts.choice_bias);
  EXPECT_THAT(config.layer_has_experts, ElementsAre(false, true, true));

  for (const char* const name : {"greedy", "gready"}) {
    const ModelConfig greedy = MustLoadConfig(
        With(GoldenConfig("deepseek_v2"), {{"topk_method", name}}));
    EXPECT_EQ(greedy.experts.groups, 1);
  }
  // A model without a mixture.
  const ModelConfig dense = MustLoadConfig(
      With(GoldenConfig("deepseek_v2"), {{"n_routed_experts", nullptr}}));
  EXPECT_EQ(dense.experts.count, 0);
  EXPECT_EQ(dense.intermediate_size, 88);
}

TEST(LatentConfigTest, ReadsGlm) {
  // What transformers takes where the file says nothing.
  const ModelConfig config = MustLoadConfig(
      {{"architectures", {"Glm4MoeLiteForCausalLM"}},
       {"hidden_size", 2048},
       {"num_hidden_layers", 3},
       {"num_attention_heads", 20},
       {"intermediate_size", 10240},
       {"vocab_size", 154880},
       {"rope_parameters", {{"rope_theta", 1e6}, {"rope_type", "default"}}}});
  EXPECT_EQ(config.latent.rank, 512);
  EXPECT_EQ(config.latent.query_rank, 768);
  EXPECT_EQ(config.latent.nope_dim, 192);
  EXPECT_EQ(config.latent.value_dim, 256);
  EXPECT_EQ(config.max_position, 202752);
  EXPECT_EQ(config.rms_norm_eps, 1e-5);
  EXPECT_EQ(config.rope_theta, 1e6);
  EXPECT_EQ(config.experts.count, 64);
  EXPECT_EQ(config.experts.per_token, 4);
  EXPECT_EQ(config.experts.groups, 1);
  EXPECT_EQ(config.experts.scale, 1.8);
  EXPECT_THAT(config.layer_has_experts, ElementsAre(false, true, true));
}

TEST(LatentConfigTest, WrongFieldsAreNamed) {
  const json v2 = GoldenConfig("deepseek_v2");
  const json v3 = V3Config();
  using Code = absl::StatusCode;
  const std::vector<std::tuple<json, json, Code, std::string>> wrong = {
      {v3, {{"kv_lora_rank", 0}}, Code::kInvalidArgument, "kv_lora_rank is 0"},
      {v3,
       {{"kv_lora_rank", 500}},
       Code::kUnimplemented,
       "a rank of keys and values of 500; Baton knows multiples of 16"},
      {v3,
       {{"qk_rope_head_dim", 63}},
       Code::kInvalidArgument,
       "RoPE turns 63 elements of a head; they must be pairs"},
      {v3,
       {{"v_head_dim", 100}},
       Code::kUnimplemented,
       "values of 100 elements; Baton knows multiples of 64"},
      {v3,
       {{"kv_lora_rank", 1008}},
       Code::kInvalidArgument,
       "keys of 1072 elements are longer than 1024"},
      {v3,
       {{"attention_bias", true}},
       Code::kUnimplemented,
       "attention_bias is true; Baton knows false"},
      {v2,
       {{"use_mla", false}},
       Code::kUnimplemented,
       "use_mla is false; Baton knows true"},
      {v3, {{"q_lora_rank", -1}}, Code::kInvalidArgument, "q_lora_rank is -1"},
      {v3,
       {{"topk_method", "greedy"}},
       Code::kUnimplemented,
       "topk_method is \"greedy\"; Baton knows \"noaux_tc\""},
      {v2,
       {{"topk_method", "noaux_tc"}},
       Code::kUnimplemented,
       "topk_method is \"noaux_tc\"; Baton knows \"greedy\""},
      {v2,
       {{"scoring_func", "sigmoid"}},
       Code::kUnimplemented,
       "scoring_func is \"sigmoid\"; Baton knows \"softmax\""},
      {v2,
       {{"norm_topk_prob", true}},
       Code::kUnimplemented,
       "norm_topk_prob is true; Baton knows false"}};
  for (const auto& [base, changes, code, message] : wrong) {
    const absl::Status status = LoadConfig(With(base, changes)).status();
    EXPECT_EQ(status.code(), code) << changes;
    EXPECT_THAT(status.message(),
                AllOf(HasSubstr("config.json"), HasSubstr(message)));
  }
}

// Every shape follows from the config.
TEST(LatentWeightsTest, AreFoundByTheirNames) {
  for (const char* const name : {"deepseek_v2", "deepseek_v3"}) {
    const LoadedModel model = LoadModel(GoldenDir(name));
    ASSERT_TRUE(model.status.ok()) << model.status;
    const ModelConfig& config = model.config;
    const LatentConfig& latent = config.latent;
    for (int32_t i = 0; i < config.num_layers; ++i) {
      const LayerWeights& layer = model.weights.layers[i];
      ASSERT_TRUE(layer.latent.has_value());
      const LatentWeights& w = *layer.latent;
      EXPECT_EQ(w.query_down.has_value(), latent.query_rank > 0);
      EXPECT_EQ(w.queries.rows, config.num_heads * latent.query_dim());
      EXPECT_EQ(w.key_up.rows, config.num_heads * latent.rank);
      EXPECT_EQ(w.key_up.columns, latent.nope_dim);
      EXPECT_EQ(w.value_up.rows, config.num_heads * latent.value_dim);
      EXPECT_EQ(w.value_up.columns, latent.rank);
      EXPECT_EQ(layer.o_proj.columns, config.AttentionSize());
      EXPECT_EQ(layer.experts.size(),
                static_cast<size_t>(
                    config.LayerHasExperts(i) ? config.experts.all() : 0));
    }
  }
}

TEST(LatentWeightsTest, AMissingTensorIsNamed) {
  const json config = GoldenConfig("deepseek_v3");
  const LoadedModel golden = LoadModel(GoldenDir("deepseek_v3"));
  ASSERT_TRUE(golden.status.ok()) << golden.status;
  for (const char* const missing :
       {"q_a_proj.weight", "q_a_layernorm.weight", "q_b_proj.weight",
        "kv_a_proj_with_mqa.weight", "kv_a_layernorm.weight",
        "kv_b_proj.weight"}) {
    const std::string name = std::string("model.layers.0.self_attn.") + missing;
    std::vector<TestTensor> tensors;
    for (const TensorView* view : golden.weights.AllTensors()) {
      if (view->name == name) continue;
      tensors.push_back(
          {std::string(view->name), DTypeName(view->dtype), view->shape,
           std::string(reinterpret_cast<const char*>(view->bytes.data()),
                       view->bytes.size())});
    }
    // Views of one matrix name it more than once.
    std::sort(tensors.begin(), tensors.end(),
              [](const auto& a, const auto& b) { return a.name < b.name; });
    tensors.erase(std::unique(tensors.begin(), tensors.end(),
                              [](const auto& a, const auto& b) {
                                return a.name == b.name;
                              }),
                  tensors.end());
    ModelDir dir;
    dir.Write("config.json", config.dump());
    dir.Write("model.safetensors", Safetensors(tensors));
    const absl::Status status = LoadModel(dir.path()).status;
    EXPECT_EQ(status.code(), absl::StatusCode::kNotFound) << status;
    EXPECT_THAT(status.message(), HasSubstr(name));
  }
}

// Element (row, column) of a matrix of the file.
std::vector<float> RowsOfFile(const ModelWeights& weights,
                              const std::string& name) {
  for (const WeightMatrix* matrix : weights.AllMatrices()) {
    if (matrix->base != nullptr && matrix->base->name == name) {
      return AllRows(*matrix->base);
    }
  }
  ADD_FAILURE() << name;
  return {};
}

TEST(LatentWeightsTest, HeadsHaveTheirPartsOfTheMatrix) {
  const LoadedModel model = LoadModel(GoldenDir("deepseek_v3"));
  ASSERT_TRUE(model.status.ok()) << model.status;
  const LatentConfig& latent = model.config.latent;
  const LatentWeights& w = *model.weights.layers[1].latent;
  const std::vector<float> both =
      RowsOfFile(model.weights, "model.layers.1.self_attn.kv_b_proj.weight");
  const std::vector<float> keys = AllRows(w.key_up);
  const std::vector<float> values = AllRows(w.value_up);
  const int32_t stride = latent.nope_dim + latent.value_dim;
  for (int32_t h = 0; h < model.config.num_heads; ++h) {
    for (int32_t c = 0; c < latent.rank; ++c) {
      for (int32_t i = 0; i < latent.nope_dim; ++i) {
        ASSERT_EQ(keys[(h * latent.rank + c) * latent.nope_dim + i],
                  both[(h * stride + i) * latent.rank + c]);
      }
      for (int32_t i = 0; i < latent.value_dim; ++i) {
        ASSERT_EQ(values[(h * latent.value_dim + i) * latent.rank + c],
                  both[(h * stride + latent.nope_dim + i) * latent.rank + c]);
      }
    }
  }
}

// A plain matrix and one in blocks of 32 weights, which cannot be read but row
// by row.
TEST(MatrixViewsTest, PartsAndTurnedHeadsOfAnyEncoding) {
  constexpr int64_t kRows = 6, kColumns = 64;
  std::string floats, blocks;
  for (int64_t i = 0; i < kRows * kColumns; ++i) {
    const float value = static_cast<float>(i % 127) - 60.0f;
    floats.append(reinterpret_cast<const char*>(&value), sizeof(value));
    // Q8_0: a scale in F16, here 1, and the numbers.
    if (i % 32 == 0) blocks.append(std::string("\0\x3c", 2));
    blocks.push_back(static_cast<char>(i % 127 - 60));
  }
  const auto matrix = [&](WeightEncoding encoding, const std::string& bytes) {
    WeightMatrix m;
    m.name = "m";
    m.rows = kRows;
    m.columns = kColumns;
    m.encoding = encoding;
    m.values.dtype = DType::kF32;
    m.values.bytes = {reinterpret_cast<const std::byte*>(bytes.data()),
                      bytes.size()};
    return std::make_shared<const WeightMatrix>(std::move(m));
  };
  for (const auto& base : {matrix(WeightEncoding::kPlain, floats),
                           matrix(WeightEncoding::kGgufQ8_0, blocks)}) {
    const auto at = [](int64_t row, int64_t column) {
      return static_cast<float>((row * kColumns + column) % 127) - 60.0f;
    };
    // The second row of two heads of three.
    const WeightMatrix part = PartOf(base, {1, 1, 3}, 2, 5, 7);
    const std::vector<float> rows = AllRows(part);
    const WeightMatrix turned = TurnedHeads(base, {1, 2, 3}, 2);
    EXPECT_EQ(turned.rows, 2 * kColumns);
    EXPECT_EQ(turned.columns, 2);
    const std::vector<float> outputs = AllRows(turned);
    for (int64_t h = 0; h < 2; ++h) {
      for (int64_t c = 0; c < 7; ++c) {
        EXPECT_EQ(rows[h * 7 + c], at(1 + 3 * h, 5 + c));
      }
      for (int64_t r = 0; r < kColumns; ++r) {
        for (int64_t i = 0; i < 2; ++i) {
          EXPECT_EQ(outputs[(h * kColumns + r) * 2 + i], at(1 + 3 * h + i, r));
        }
      }
    }
    // Rows of two heads at a time.
    std::vector<float> some(4 * 2);
    ReadRows(turned, kColumns - 2, 4, absl::MakeSpan(some));
    EXPECT_EQ(some[0], at(1, kColumns - 2));
    EXPECT_EQ(some[7], at(5, 1));
  }
}

TEST(MatrixViewsTest, WhatLiesInPairsIsReadInHalves) {
  // Heads of 2 rows that stay, and 6 in pairs.
  EXPECT_EQ(StoredRow(0, 8, 2), 0);
  EXPECT_EQ(StoredRow(1, 8, 2), 1);
  std::vector<int64_t> stored;
  for (int64_t row = 10; row < 16; ++row)
    stored.push_back(StoredRow(row, 8, 2));
  EXPECT_THAT(stored, ElementsAre(10, 12, 14, 11, 13, 15));
}

// Of words of 32 bits that hold the outputs, or the inputs, of eight weights.
TEST(MatrixViewsTest, GroupedMatricesHaveViewsToo) {
  const GroupedMatrix grouped(/*outputs=*/24, /*inputs=*/64, /*group_size=*/32,
                              /*bits=*/4, /*seed=*/7);
  const std::vector<TestTensor> gptq = grouped.Gptq("m", 1, false);
  const std::vector<TestTensor> awq = grouped.Awq("m");
  for (const WeightMatrix& plain :
       {grouped.View(gptq, WeightEncoding::kGptq, 1),
        grouped.View(awq, WeightEncoding::kAwq, 0)}) {
    const auto base = std::make_shared<const WeightMatrix>(plain);
    // Two heads of twelve rows, of each five from the second on.
    const WeightMatrix turned = TurnedHeads(base, {1, 5, 12}, 2);
    const std::vector<float> outputs = AllRows(turned);
    for (int64_t h = 0; h < 2; ++h) {
      for (int64_t r = 0; r < 64; ++r) {
        for (int64_t i = 0; i < 5; ++i) {
          ASSERT_EQ(outputs[(h * 64 + r) * 5 + i],
                    grouped.Weight(h * 12 + 1 + i, r));
        }
      }
    }
    WeightMatrix pairs = plain;
    pairs.interleaved_head = 12;
    pairs.interleaved_first = 4;
    const std::vector<float> rows = AllRows(pairs);
    for (int64_t row = 0; row < 24; ++row) {
      ASSERT_EQ(rows[row * 64], grouped.Weight(StoredRow(row, 12, 4), 0));
    }
  }
}

// Of e4m3 with a scale for each two rows, which is read by the row.
TEST(MatrixViewsTest, PairsAreReadInHalvesOfFp8) {
  constexpr int64_t kRows = 8, kColumns = 4;
  // 1.0 is 0x38; the next exponent, 0x40.
  std::string bytes(kRows * kColumns, '\x38');
  std::string scales;
  for (int i = 0; i < 4; ++i) {
    const float scale = static_cast<float>(1 + i);
    scales.append(reinterpret_cast<const char*>(&scale), sizeof(scale));
  }
  for (int64_t row = 1; row < kRows; row += 2) {
    bytes.replace(row * kColumns, kColumns, kColumns, '\x40');
  }
  WeightMatrix m;
  m.name = "m";
  m.rows = kRows;
  m.columns = kColumns;
  m.encoding = WeightEncoding::kFp8;
  m.values.dtype = DType::kF8E4M3;
  m.values.bytes = {reinterpret_cast<const std::byte*>(bytes.data()),
                    bytes.size()};
  m.scales.dtype = DType::kF32;
  m.scales.bytes = {reinterpret_cast<const std::byte*>(scales.data()),
                    scales.size()};
  m.block_rows = 2;
  m.block_columns = kColumns;
  const auto first_of_rows = [&] {
    const std::vector<float> all = AllRows(m);
    std::vector<float> first;
    for (int64_t row = 0; row < kRows; ++row) first.push_back(all[row * 4]);
    return first;
  };
  EXPECT_THAT(first_of_rows(), ElementsAre(1, 2, 2, 4, 3, 6, 4, 8));
  m.interleaved_head = 8;
  m.interleaved_first = 2;
  EXPECT_THAT(first_of_rows(), ElementsAre(1, 2, 2, 3, 4, 4, 6, 8));
}

TEST(LatentWeightsTest, SharedExpertsAreCutFromOne) {
  const LoadedModel model = LoadModel(GoldenDir("deepseek_v2"));
  ASSERT_TRUE(model.status.ok()) << model.status;
  const int64_t inner = model.config.experts.intermediate_size;
  const int64_t hidden = model.config.hidden_size;
  const std::vector<ExpertWeights>& experts = model.weights.layers[1].experts;
  ASSERT_EQ(experts.size(), 10u);
  const std::vector<float> gate = AllRows(*experts[8].gate_proj.base);
  const std::vector<float> down = AllRows(*experts[8].down_proj.base);
  for (int64_t e = 0; e < 2; ++e) {
    const std::vector<float> own_gate = AllRows(experts[8 + e].gate_proj);
    const std::vector<float> own_down = AllRows(experts[8 + e].down_proj);
    EXPECT_TRUE(std::equal(own_gate.begin(), own_gate.end(),
                           gate.begin() + e * inner * hidden));
    for (int64_t row = 0; row < hidden; ++row) {
      for (int64_t c = 0; c < inner; ++c) {
        ASSERT_EQ(own_down[row * inner + c],
                  down[row * 2 * inner + e * inner + c]);
      }
    }
  }
}

TEST(LatentIdentityTest, DependsOnWhatIsKept) {
  const std::string v3 = ConfigIdentity(MustLoadConfig(V3Config()));
  for (const json& changes :
       {json{{"kv_lora_rank", 256}}, json{{"qk_nope_head_dim", 64}},
        json{{"v_head_dim", 64}}, json{{"q_lora_rank", nullptr}},
        json{{"topk_group", 3}}, json{{"n_group", 4}},
        json{{"rope_scaling", {{"mscale_all_dim", 0.5}, {"mscale", 0.5}}}}}) {
    json changed = V3Config();
    changed.merge_patch(changes);
    if (changes.contains("q_lora_rank")) changed["q_lora_rank"] = nullptr;
    EXPECT_NE(ConfigIdentity(MustLoadConfig(changed)), v3) << changes;
  }
}

TEST(LatentLayoutTest, ValuesAreStoredWithKeysOnce) {
  KvLayout layout;
  layout.num_layers = 2;
  layout.num_blocks = 3;
  layout.num_kv_heads = 1;
  layout.head_dim = 576;
  layout.shared_value_dim = 512;
  EXPECT_EQ(layout.page_bytes(), 16 * 576 * 2);
  EXPECT_EQ(layout.value_dim(), 512);
  layout.dtype = KvDtype::kInt8;
  EXPECT_EQ(layout.page_bytes(), 16 * (576 + 4));
  layout.shared_value_dim = 0;
  EXPECT_EQ(layout.page_bytes(), 2 * 16 * (576 + 4));
}

}  // namespace
}  // namespace baton::engine::latent_test
