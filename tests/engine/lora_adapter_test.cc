#include "engine/lora_adapter.h"

#include <cmath>
#include <fstream>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/types/span.h"
#include "tests/engine/model_dir.h"
#include "tests/engine/mutation.h"

namespace baton::engine {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

std::string NameOf(const std::string& module, char side) {
  return "base_model.model.model.layers." + module + ".lora_" + side +
         ".weight";
}

// Zeros, of LlamaConfigJson()'s sizes: hidden 16, two heads of 8 and one of KV.
TestTensor Zeros(const std::string& name, std::vector<int64_t> shape,
                 const std::string& dtype = "F32") {
  int64_t bytes = dtype == "F32" ? 4 : 2;
  for (const int64_t n : shape) bytes *= n;
  return {name, dtype, std::move(shape), std::string(bytes, '\0')};
}

json AdapterConfig() {
  return {{"peft_type", "LORA"}, {"r", 4}, {"lora_alpha", 8}};
}

std::vector<TestTensor> QueryTensors() {
  return {Zeros(NameOf("1.self_attn.q_proj", 'A'), {4, 16}),
          Zeros(NameOf("1.self_attn.q_proj", 'B'), {16, 4})};
}

absl::StatusOr<LoraAdapter> LoadAdapter(const std::vector<TestTensor>& tensors,
                                        const json& config = AdapterConfig(),
                                        const json& model = LlamaConfigJson()) {
  ModelDir dir;
  dir.Write("adapter_config.json", config.dump());
  dir.Write("adapter_model.safetensors", Safetensors(tensors));
  return LoadLoraAdapter(dir.path(), MustLoadConfig(model));
}

TEST(LoraAdapterTest, FindsPairs) {
  const auto adapter = LoadAdapter(QueryTensors());
  ASSERT_TRUE(adapter.ok()) << adapter.status();
  EXPECT_EQ(adapter->rank, 4);
  ASSERT_EQ(adapter->layers.size(), 2u);
  EXPECT_FALSE(adapter->layers[0].of(LoraTarget::kQ).has_value());
  const auto& pair = adapter->layers[1].of(LoraTarget::kQ);
  ASSERT_TRUE(pair.has_value());
  EXPECT_EQ(pair->scale, 2.0);
  EXPECT_EQ(pair->a.rows, 4);
  EXPECT_EQ(pair->a.columns, 16);
  EXPECT_EQ(pair->b.rows, 16);
  EXPECT_EQ(pair->b.columns, 4);
  EXPECT_FALSE(adapter->layers[1].of(LoraTarget::kK).has_value());
}

TEST(LoraAdapterTest, OfModelsThatReadImages) {
  for (const std::string root :
       {"model.language_model.layers.", "language_model.model.layers."}) {
    std::vector<TestTensor> tensors = QueryTensors();
    for (TestTensor& tensor : tensors) {
      const std::string plain = "model.layers.";
      tensor.name.replace(tensor.name.find(plain, 17), plain.size(), root);
    }
    const auto adapter = LoadAdapter(tensors);
    ASSERT_TRUE(adapter.ok()) << adapter.status();
    EXPECT_TRUE(adapter->layers[1].of(LoraTarget::kQ).has_value());
  }
  std::vector<TestTensor> vision = QueryTensors();
  for (TestTensor& tensor : vision) tensor.name.insert(17, "vision_tower.");
  EXPECT_THAT(std::string(LoadAdapter(vision).status().message()),
              HasSubstr("vision_tower"));
}

TEST(LoraAdapterTest, Scales) {
  const auto by_root = LoadAdapter(
      QueryTensors(), With(AdapterConfig(), {{"use_rslora", true}}));
  ASSERT_TRUE(by_root.ok()) << by_root.status();
  EXPECT_EQ(by_root->layers[1].of(LoraTarget::kQ)->scale, 4.0);
  // Of each pair's own rank.
  std::vector<TestTensor> tensors = QueryTensors();
  tensors.push_back(Zeros(NameOf("0.self_attn.o_proj", 'A'), {2, 16}));
  tensors.push_back(Zeros(NameOf("0.self_attn.o_proj", 'B'), {16, 2}));
  EXPECT_THAT(LoadAdapter(tensors).status().message(),
              AllOf(HasSubstr("layers.0.self_attn.o_proj.lora_A.weight"),
                    HasSubstr("[2, 16]"), HasSubstr("[4, 16]")));
  const auto varied = LoadAdapter(
      tensors, With(AdapterConfig(), {{"rank_pattern", {{"o_proj", 2}}}}));
  ASSERT_TRUE(varied.ok()) << varied.status();
  EXPECT_EQ(varied->layers[0].of(LoraTarget::kO)->scale, 4.0);
  EXPECT_EQ(varied->layers[1].of(LoraTarget::kQ)->scale, 2.0);
  EXPECT_EQ(varied->rank, 4);
}

TEST(LoraAdapterTest, IdentityIsOfWhatItAdds) {
  const auto identity = [](const absl::StatusOr<LoraAdapter>& adapter) {
    return adapter.ok() ? adapter->identity : adapter.status().ToString();
  };
  const std::string plain = identity(LoadAdapter(QueryTensors()));
  EXPECT_EQ(plain.size(), 32u) << plain;
  EXPECT_EQ(identity(LoadAdapter(QueryTensors())), plain);
  EXPECT_EQ(
      identity(LoadAdapter(QueryTensors(),
                           With(AdapterConfig(), {{"lora_dropout", 0.5}}))),
      plain);
  EXPECT_NE(identity(LoadAdapter(QueryTensors(),
                                 With(AdapterConfig(), {{"lora_alpha", 9}}))),
            plain);
  EXPECT_NE(identity(LoadAdapter(
                QueryTensors(), With(AdapterConfig(), {{"use_rslora", true}}))),
            plain);
  std::vector<TestTensor> tensors = QueryTensors();
  tensors[1].bytes[100] = 1;
  EXPECT_NE(identity(LoadAdapter(tensors)), plain);
}

// Phi's Q, K and V, and gate and up, are one matrix each.
TEST(LoraAdapterTest, CutsFusedMatrices) {
  const json model = ConfigJson("Phi3ForCausalLM");
  const ModelConfig config = MustLoadConfig(model);
  const int64_t q = int64_t{config.num_heads} * config.head_dim;
  const int64_t kv = int64_t{config.num_kv_heads} * config.head_dim;
  const auto adapter = LoadAdapter(
      {Zeros(NameOf("0.self_attn.qkv_proj", 'A'), {4, config.hidden_size}),
       Zeros(NameOf("0.self_attn.qkv_proj", 'B'), {q + 2 * kv, 4}),
       Zeros(NameOf("0.mlp.gate_up_proj", 'A'), {4, config.hidden_size}),
       Zeros(NameOf("0.mlp.gate_up_proj", 'B'),
             {2 * config.intermediate_size, 4})},
      AdapterConfig(), model);
  ASSERT_TRUE(adapter.ok()) << adapter.status();
  const LoraLayer& layer = adapter->layers[0];
  EXPECT_EQ(layer.of(LoraTarget::kQ)->b.rows, q);
  EXPECT_EQ(layer.of(LoraTarget::kV)->b.rows, kv);
  const std::byte* const first =
      layer.of(LoraTarget::kQ)->b.values.bytes.data();
  EXPECT_EQ(layer.of(LoraTarget::kV)->b.values.bytes.data() - first,
            (q + kv) * 4 * 4);
  EXPECT_EQ(layer.of(LoraTarget::kUp)->b.rows, config.intermediate_size);
  EXPECT_FALSE(layer.of(LoraTarget::kDown).has_value());
}

TEST(LoraAdapterTest, NamesWhatIsWrongWithAFile) {
  const auto says = [](const std::vector<TestTensor>& tensors) {
    return LoadAdapter(tensors).status();
  };
  std::vector<TestTensor> tensors = QueryTensors();
  tensors.pop_back();
  EXPECT_THAT(says(tensors).message(),
              AllOf(HasSubstr("q_proj.lora_B.weight\" is missing"),
                    HasSubstr("adapter_model.safetensors")));
  tensors = QueryTensors();
  tensors.erase(tensors.begin());
  EXPECT_THAT(says(tensors).message(),
              HasSubstr("q_proj.lora_A.weight\" is missing"));
  tensors = QueryTensors();
  tensors[1] = Zeros(tensors[1].name, {8, 4});
  EXPECT_THAT(says(tensors).message(),
              AllOf(HasSubstr("has shape [8, 4]"), HasSubstr("[16, 4]")));
  tensors[1] = Zeros(tensors[1].name, {64});
  EXPECT_THAT(says(tensors).message(), HasSubstr("has shape [64]"));
  EXPECT_THAT(says({}).message(), HasSubstr("has no tensor"));
  for (const char* name :
       {"base_model.model.lm_head.lora_A.weight",
        "base_model.model.model.embed_tokens.lora_embedding_A",
        "base_model.model.model.layers.2.self_attn.q_proj.lora_A.weight",
        "base_model.model.model.layers.-1.self_attn.q_proj.lora_A.weight",
        "base_model.model.model.layers..self_attn.q_proj.lora_A.weight",
        "base_model.model.model.layers.0.self_attn.q_proj.lora_A",
        "base_model.model.model.layers.0.mlp.experts.0.up_proj.lora_A.weight",
        "base_model.model.model.layers.0.self_attn.qkv_proj.lora_A.weight",
        "base_model.model.model.layers.0.input_layernorm.weight"}) {
    tensors = QueryTensors();
    tensors.push_back(Zeros(name, {4, 16}));
    const absl::Status status = says(tensors);
    EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented) << name;
    EXPECT_THAT(status.message(), HasSubstr(name));
  }
}

TEST(LoraAdapterTest, ExpertsHaveNone) {
  const json model = ConfigJson("MixtralForCausalLM");
  const int64_t hidden = MustLoadConfig(model).hidden_size;
  EXPECT_EQ(LoadAdapter({Zeros(NameOf("0.mlp.up_proj", 'A'), {4, hidden}),
                         Zeros(NameOf("0.mlp.up_proj", 'B'), {24, 4})},
                        AdapterConfig(), model)
                .status()
                .code(),
            absl::StatusCode::kUnimplemented);
}

TEST(LoraAdapterTest, LatentAttentionHasNone) {
  const json model =
      json::parse(std::ifstream(GoldenDir("deepseek_v3") + "/config.json"));
  const absl::Status status = LoadAdapter({}, AdapterConfig(), model).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(status.message(), HasSubstr("no adapters of DeepseekV3"));
}

TEST(LoraAdapterTest, NamesWhatIsWrongWithAConfig) {
  const auto says = [](const json& changes) {
    return LoadAdapter(QueryTensors(), With(AdapterConfig(), changes)).status();
  };
  for (const json& changes :
       {json{{"peft_type", "IA3"}}, json{{"bias", "all"}},
        json{{"use_dora", true}}, json{{"fan_in_fan_out", true}},
        json{{"modules_to_save", {"lm_head"}}},
        json{{"alpha_pattern", {{"q_proj", 2}}}}, json{{"lora_bias", true}},
        json{{"target_parameters", {"experts"}}},
        json{{"init_lora_weights", "pissa_niter_4"}},
        json{{"init_lora_weights", "olora"}}}) {
    const absl::Status status = says(changes);
    EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented) << changes;
    EXPECT_THAT(status.message(), AllOf(HasSubstr("adapter_config.json"),
                                        HasSubstr(changes.begin().key())));
  }
  for (const json& changes :
       {json{{"r", 0}}, json{{"r", 513}}, json{{"r", "(erase)"}},
        json{{"r", "many"}}, json{{"lora_alpha", "x"}},
        json{{"use_rslora", 1}}}) {
    const absl::Status status = says(changes);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << changes;
    EXPECT_THAT(status.message(), HasSubstr(changes.begin().key()));
  }
  // What changes nothing of what is read.
  for (const json& changes :
       {json{{"init_lora_weights", true}},
        json{{"init_lora_weights", "gaussian"}},
        json{{"modules_to_save", nullptr}},
        json{{"alpha_pattern", json::object()}},
        json{{"base_model_name_or_path", "somewhere/else"}}}) {
    EXPECT_TRUE(says(changes).ok()) << changes << says(changes);
  }
}

// Whatever is in the files: an error, or pairs of the model's shapes.
TEST(LoraAdapterTest, SurvivesDamage) {
  std::mt19937 random(3);
  const ModelConfig model = MustLoadConfig(LlamaConfigJson());
  std::vector<TestTensor> tensors = QueryTensors();
  tensors.push_back(Zeros(NameOf("0.mlp.up_proj", 'A'), {4, 16}, "BF16"));
  tensors.push_back(
      Zeros(NameOf("0.mlp.up_proj", 'B'), {model.intermediate_size, 4}));
  const std::string content = Safetensors(tensors);
  const std::string config =
      With(AdapterConfig(), {{"use_rslora", false},
                             {"rank_pattern", json::object()},
                             {"init_lora_weights", true}})
          .dump();
  ModelDir dir;
  int loaded = 0;
  for (int i = 0; i < 3000; ++i) {
    const bool of_config = i % 2 == 0;
    dir.Write("adapter_config.json",
              of_config ? Mutate(config, random) : config);
    dir.Write("adapter_model.safetensors",
              of_config ? content : Mutate(content, random));
    const auto adapter = LoadLoraAdapter(dir.path(), model);
    if (!adapter.ok()) continue;
    ++loaded;
    EXPECT_GE(adapter->rank, 1);
    EXPECT_LE(adapter->rank, kMaxLoraRank);
    for (int32_t layer = 0; layer < model.num_layers; ++layer) {
      for (int t = 0; t < kNumLoraTargets; ++t) {
        const auto& pair = adapter->layers[layer].of(LoraTarget{t});
        if (!pair.has_value()) continue;
        const auto shape = LoraShapeOf(model, layer, LoraTarget{t});
        EXPECT_EQ(pair->a.columns, shape->inputs);
        EXPECT_EQ(pair->b.rows, shape->outputs);
        EXPECT_EQ(pair->a.rows, pair->b.columns);
        std::vector<float> row(pair->b.columns);
        ReadRow(pair->b, pair->b.rows - 1, absl::MakeSpan(row));
      }
    }
  }
  EXPECT_GT(loaded, 100);
}

TEST(LoraAdapterTest, NamesAMissingFile) {
  ModelDir dir;
  const ModelConfig model = MustLoadConfig(LlamaConfigJson());
  absl::Status status = LoadLoraAdapter(dir.path(), model).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(status.message(), HasSubstr(dir.File("adapter_config.json")));
  dir.Write("adapter_config.json", AdapterConfig().dump());
  status = LoadLoraAdapter(dir.path(), model).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(status.message(),
              HasSubstr(dir.File("adapter_model.safetensors")));
}

}  // namespace
}  // namespace baton::engine
