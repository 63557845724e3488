#include "engine/model_config.h"

#include <random>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/engine/model_dir.h"
#include "tests/engine/mutation.h"

namespace baton::engine {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

TEST(ModelConfigTest, ReadsALlama) {
  const ModelConfig config = MustLoadConfig(LlamaConfigJson());
  EXPECT_EQ(config.architecture, Architecture::kLlama);
  EXPECT_EQ(config.hidden_size, 16);
  EXPECT_EQ(config.num_layers, 2);
  EXPECT_EQ(config.num_heads, 4);
  EXPECT_EQ(config.num_kv_heads, 2);
  EXPECT_EQ(config.head_dim, 4);
  EXPECT_EQ(config.intermediate_size, 24);
  EXPECT_EQ(config.vocab_size, 32);
  EXPECT_EQ(config.max_position, 64);
  EXPECT_EQ(config.rms_norm_eps, 1e-5);
  EXPECT_EQ(config.rope_theta, 10000.0);
  EXPECT_EQ(config.rope_scaling.kind, RopeScaling::Kind::kNone);
  EXPECT_FALSE(config.sliding_window.has_value());
  EXPECT_FALSE(config.tie_word_embeddings);
  EXPECT_FALSE(config.qkv_bias || config.o_bias || config.qk_norm ||
               config.mlp_bias);
  EXPECT_EQ(config.bos_token_id, 1);
  EXPECT_THAT(config.eos_token_ids, ElementsAre(2));
}

TEST(ModelConfigTest, DefaultsAreThoseOfTransformers) {
  const json absent = {{"num_key_value_heads", "(erase)"},
                       {"rms_norm_eps", "(erase)"},
                       {"hidden_act", "(erase)"},
                       {"bos_token_id", "(erase)"},
                       {"eos_token_id", nullptr},
                       {"max_position_embeddings", "(erase)"}};
  const ModelConfig llama = MustLoadConfig(With(LlamaConfigJson(), absent));
  EXPECT_EQ(llama.num_kv_heads, 4);
  EXPECT_EQ(llama.rms_norm_eps, 1e-6);
  EXPECT_EQ(llama.max_position, 2048);
  EXPECT_FALSE(llama.bos_token_id.has_value());
  EXPECT_THAT(llama.eos_token_ids, IsEmpty());

  const json wide = {{"hidden_size", 64}, {"num_attention_heads", 32}};
  const ModelConfig mistral = MustLoadConfig(
      With(With(ConfigJson("MistralForCausalLM"), absent), wide));
  EXPECT_EQ(mistral.num_kv_heads, 8);
  EXPECT_EQ(mistral.sliding_window, 4096);
  EXPECT_TRUE(mistral.LayerSlides(0));
  EXPECT_EQ(mistral.max_position, 131072);

  const ModelConfig qwen2 =
      MustLoadConfig(With(With(ConfigJson("Qwen2ForCausalLM"), absent), wide));
  EXPECT_EQ(qwen2.num_kv_heads, 32);
  EXPECT_EQ(qwen2.head_dim, 2);
  EXPECT_TRUE(qwen2.qkv_bias);
  EXPECT_FALSE(qwen2.o_bias);
  EXPECT_FALSE(qwen2.sliding_window.has_value());
  EXPECT_EQ(qwen2.max_position, 32768);

  const ModelConfig phi3 =
      MustLoadConfig(With(ConfigJson("Phi3ForCausalLM"), absent));
  EXPECT_EQ(phi3.num_kv_heads, 4);
  EXPECT_EQ(phi3.rms_norm_eps, 1e-5);
  EXPECT_EQ(phi3.max_position, 4096);
  EXPECT_FALSE(phi3.sliding_window.has_value());
  EXPECT_EQ(phi3.RotaryDim(), phi3.head_dim);

  const ModelConfig smollm3 = MustLoadConfig(
      With(With(ConfigJson("SmolLM3ForCausalLM"), absent),
           {{"rope_theta", "(erase)"}, {"tie_word_embeddings", "(erase)"}}));
  EXPECT_EQ(smollm3.num_kv_heads, 4);
  EXPECT_EQ(smollm3.max_position, 32768);
  EXPECT_EQ(smollm3.rope_theta, 2e6);
  EXPECT_TRUE(smollm3.tie_word_embeddings);
  EXPECT_FALSE(smollm3.qkv_bias);

  const ModelConfig qwen3 = MustLoadConfig(ConfigJson("Qwen3ForCausalLM"));
  EXPECT_EQ(qwen3.head_dim, 128);
  EXPECT_TRUE(qwen3.qk_norm);
  EXPECT_FALSE(qwen3.qkv_bias);
}

TEST(ModelConfigTest, NullKeyValueHeadsMeansAllHeads) {
  for (const char* name :
       {"LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM"}) {
    EXPECT_EQ(MustLoadConfig(
                  With(ConfigJson(name), {{"num_key_value_heads", nullptr}}))
                  .num_kv_heads,
              4);
  }
}

TEST(ModelConfigTest, Biases) {
  const json on = {{"attention_bias", true}, {"mlp_bias", true}};
  const ModelConfig llama = MustLoadConfig(With(LlamaConfigJson(), on));
  EXPECT_TRUE(llama.qkv_bias && llama.o_bias && llama.mlp_bias);
  const ModelConfig qwen3 =
      MustLoadConfig(With(ConfigJson("Qwen3ForCausalLM"), on));
  EXPECT_TRUE(qwen3.qkv_bias && qwen3.o_bias);
  EXPECT_FALSE(qwen3.mlp_bias);
  const ModelConfig mistral =
      MustLoadConfig(With(ConfigJson("MistralForCausalLM"), on));
  EXPECT_FALSE(mistral.qkv_bias || mistral.o_bias || mistral.mlp_bias);
}

TEST(ModelConfigTest, SlidingWindows) {
  const auto mistral = [](const json& window) {
    return MustLoadConfig(With(ConfigJson("MistralForCausalLM"),
                               {{"sliding_window", window}}))
        .sliding_window;
  };
  EXPECT_EQ(mistral(8), 8);
  EXPECT_EQ(mistral(nullptr), std::nullopt);
  EXPECT_EQ(MustLoadConfig(With(LlamaConfigJson(), {{"sliding_window", 8}}))
                .sliding_window,
            std::nullopt);

  const auto qwen = [](const json& changes) {
    json config = With(ConfigJson("Qwen2ForCausalLM"),
                       {{"use_sliding_window", true}, {"sliding_window", 8}});
    return MustLoadConfig(With(config, changes));
  };
  const ModelConfig second = qwen({{"max_window_layers", 1}});
  EXPECT_EQ(second.sliding_window, 8);
  EXPECT_FALSE(second.LayerSlides(0));
  EXPECT_TRUE(second.LayerSlides(1));
  const ModelConfig all = qwen({{"max_window_layers", 0}});
  EXPECT_TRUE(all.LayerSlides(0) && all.LayerSlides(1));
  EXPECT_THAT(all.layer_slides, IsEmpty());
  // The default of max_window_layers is 28: none of two.
  EXPECT_EQ(qwen(json::object()).sliding_window, std::nullopt);
  EXPECT_EQ(qwen({{"max_window_layers", 0}, {"use_sliding_window", false}})
                .sliding_window,
            std::nullopt);
  EXPECT_EQ(qwen({{"max_window_layers", 0}, {"sliding_window", nullptr}})
                .sliding_window,
            std::nullopt);
  const ModelConfig listed =
      qwen({{"layer_types", {"sliding_attention", "full_attention"}}});
  EXPECT_TRUE(listed.LayerSlides(0));
  EXPECT_FALSE(listed.LayerSlides(1));
}

TEST(ModelConfigTest, EndTokens) {
  EXPECT_THAT(
      MustLoadConfig(With(LlamaConfigJson(), {{"eos_token_id", {3, 5, 3}}}))
          .eos_token_ids,
      ElementsAre(3, 5));
  ModelDir dir;
  dir.Write("config.json", LlamaConfigJson().dump());
  dir.Write("generation_config.json", R"({"eos_token_id": [7, 8]})");
  auto config = LoadModelConfig(dir.path());
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_THAT(config->eos_token_ids, ElementsAre(7, 8));
  EXPECT_EQ(config->bos_token_id, 1);

  dir.Write("generation_config.json", R"({"eos_token_id": 32})");
  config = LoadModelConfig(dir.path());
  EXPECT_EQ(config.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(config.status().message(),
              HasSubstr("generation_config.json: eos_token_id is 32"));
}

TEST(ModelConfigTest, ReadsTheGoldenModels) {
  for (const char* name :
       {"llama2", "llama3", "llama_linear", "mistral", "qwen2", "qwen3",
        "mixtral", "qwen3_moe", "glm4_moe", "qwen2_yarn", "phi3", "phi3_long",
        "smollm3", "gemma3"}) {
    const auto config = LoadModelConfig(GoldenDir(name));
    EXPECT_TRUE(config.ok()) << config.status();
  }
  const auto qwen3 = LoadModelConfig(GoldenDir("qwen3"));
  EXPECT_EQ(qwen3->rope_theta, 1e6);
  EXPECT_EQ(qwen3->head_dim, 32);
  EXPECT_THAT(qwen3->eos_token_ids, ElementsAre(2, 3));
}

TEST(ModelConfigTest, MissingDirectoryAndFile) {
  auto config = LoadModelConfig("/nowhere/at-all");
  EXPECT_EQ(config.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(config.status().message(), HasSubstr("/nowhere/at-all"));
  ModelDir dir;
  config = LoadModelConfig(dir.path());
  EXPECT_EQ(config.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(config.status().message(), HasSubstr("config.json"));
  dir.Write("config.json", std::string(size_t{2} << 20, ' '));
  EXPECT_EQ(LoadModelConfig(dir.path()).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(ModelConfigTest, UnknownArchitectureNamesTheKnownOnes) {
  const auto config = LoadConfig(ConfigJson("GPT2LMHeadModel"));
  EXPECT_EQ(config.status().code(), absl::StatusCode::kUnimplemented);
  for (const char* word :
       {"GPT2LMHeadModel", "LlamaForCausalLM", "MistralForCausalLM",
        "Qwen2ForCausalLM", "Qwen3ForCausalLM", "MixtralForCausalLM",
        "Qwen3MoeForCausalLM", "Glm4MoeForCausalLM", "Phi3ForCausalLM",
        "SmolLM3ForCausalLM", "GptOssForCausalLM", "Gemma3ForCausalLM"}) {
    EXPECT_THAT(config.status().message(), HasSubstr(word));
  }
}

TEST(ModelConfigTest, UnknownFeaturesAreNamed) {
  const std::vector<std::pair<json, std::string>> cases = {
      {{{"rope_scaling", {{"rope_type", "ntk"}, {"factor", 4}}}},
       "rope_scaling.rope_type is \"ntk\""},
      {{{"rope_scaling", {{"type", "dynamic"}, {"factor", 4}}}},
       "rope_scaling.type is \"dynamic\""},
      {{{"rope_parameters", {{"rope_type", "proportional"}}}},
       "rope_parameters.rope_type is \"proportional\""},
      {{{"rope_parameters", {{"full_attention", json::object()}}}},
       "rope_parameters differs between layers"},
      {{{"rope_parameters", {{"partial_rotary_factor", 0.5}}}},
       "rope_parameters.partial_rotary_factor"},
      {{{"partial_rotary_factor", 0.5}}, "partial_rotary_factor is 0.5"},
      {{{"hidden_act", "gelu"}}, "hidden_act is \"gelu\""},
      {{{"quantization_config", {{"quant_method", "hqq"}}}},
       "quantization_config.quant_method is \"hqq\""},
  };
  for (const auto& [changes, message] : cases) {
    const auto config = LoadConfig(With(LlamaConfigJson(), changes));
    EXPECT_EQ(config.status().code(), absl::StatusCode::kUnimplemented)
        << changes;
    EXPECT_THAT(config.status().message(), HasSubstr(message));
    EXPECT_THAT(config.status().message(), HasSubstr("/config.json: "));
  }
  const auto layers = LoadConfig(
      With(ConfigJson("Qwen3ForCausalLM"),
           {{"layer_types", {"full_attention", "linear_attention"}}}));
  EXPECT_EQ(layers.status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(layers.status().message(), HasSubstr("layer_types[1]"));
}

TEST(ModelConfigTest, ImpossibleFieldsAreNamed) {
  const std::vector<std::pair<json, std::string>> cases = {
      {{{"architectures", "(erase)"}}, "architectures is missing"},
      {{{"architectures", "LlamaForCausalLM"}}, "architectures is "},
      {{{"architectures", json::array()}}, "architectures is []"},
      {{{"architectures", {1}}}, "architectures is [1]"},
      {{{"hidden_size", "(erase)"}}, "hidden_size is missing"},
      {{{"hidden_size", nullptr}}, "hidden_size is missing"},
      {{{"hidden_size", 0}}, "hidden_size is 0, it must be"},
      {{{"hidden_size", -16}}, "hidden_size is -16"},
      {{{"hidden_size", "16"}}, "hidden_size is \"16\""},
      {{{"hidden_size", 16.0}}, "hidden_size is 16.0"},
      {{{"hidden_size", 1 << 30}}, "hidden_size is 1073741824"},
      {{{"hidden_size", 4294967312}}, "hidden_size is 4294967312"},
      {{{"hidden_size", UINT64_MAX}}, "hidden_size is 18446744073709551615"},
      {{{"hidden_size", 18}}, "hidden_size is 18, it must be a multiple"},
      {{{"hidden_size", 12}}, "head_dim is 3, it must be even"},
      {{{"num_hidden_layers", 0}}, "num_hidden_layers is 0"},
      {{{"num_hidden_layers", 1 << 20}}, "num_hidden_layers"},
      {{{"num_attention_heads", 0}}, "num_attention_heads is 0"},
      {{{"num_attention_heads", 3}}, "num_key_value_heads is 2"},
      {{{"num_attention_heads", 4096},
        {"num_key_value_heads", 1},
        {"head_dim", 1024}},
       "num_attention_heads is 4096"},
      {{{"num_key_value_heads", 0}}, "num_key_value_heads is 0"},
      {{{"num_key_value_heads", 3}},
       "num_key_value_heads is 3, it must be a "
       "divisor of num_attention_heads (4)"},
      {{{"num_key_value_heads", 8}}, "num_key_value_heads is 8"},
      {{{"head_dim", 0}}, "head_dim is 0"},
      {{{"head_dim", 5}}, "head_dim is 5, it must be even"},
      {{{"head_dim", 2048}}, "head_dim is 2048"},
      {{{"intermediate_size", 0}}, "intermediate_size is 0"},
      {{{"intermediate_size", json::array({1, 2})}}, "intermediate_size is [1"},
      {{{"vocab_size", 0}}, "vocab_size is 0"},
      {{{"vocab_size", 1 << 30}}, "vocab_size"},
      {{{"max_position_embeddings", 0}}, "max_position_embeddings is 0"},
      {{{"rms_norm_eps", 0}}, "rms_norm_eps is 0"},
      {{{"rms_norm_eps", -1e-6}}, "rms_norm_eps"},
      {{{"rms_norm_eps", "1e-6"}}, "rms_norm_eps"},
      {{{"rope_theta", 0}}, "rope_theta is 0"},
      {{{"rope_theta", 1e300}}, "rope_theta"},
      {{{"tie_word_embeddings", 1}}, "tie_word_embeddings is 1"},
      {{{"attention_bias", "no"}}, "attention_bias"},
      {{{"hidden_act", 3}}, "hidden_act is 3"},
      {{{"eos_token_id", 32}}, "eos_token_id is 32"},
      {{{"eos_token_id", -1}}, "eos_token_id is -1"},
      {{{"eos_token_id", {1, "x"}}}, "eos_token_id is [1"},
      {{{"bos_token_id", 1.5}}, "bos_token_id is 1.5"},
      {{{"rope_scaling", 4}}, "rope_scaling is 4"},
      {{{"rope_scaling", json::object()}}, "rope_scaling.rope_type is missing"},
      {{{"rope_scaling", {{"type", 3}}}}, "rope_scaling.type is 3"},
      {{{"rope_scaling", {{"type", "linear"}}}}, "rope_scaling.factor is miss"},
      {{{"rope_scaling", {{"type", "linear"}, {"factor", 0}}}},
       "rope_scaling.factor is 0"},
      {{{"rope_scaling",
         {{"type", "llama3"},
          {"factor", 8},
          {"low_freq_factor", 4},
          {"high_freq_factor", 4},
          {"original_max_position_embeddings", 32}}}},
       "rope_scaling.high_freq_factor is 4"},
      {{{"rope_scaling",
         {{"type", "llama3"},
          {"factor", 8},
          {"low_freq_factor", 1},
          {"high_freq_factor", 4}}}},
       "rope_scaling.original_max_position_embeddings is missing"},
  };
  for (const auto& [changes, message] : cases) {
    const auto config = LoadConfig(With(LlamaConfigJson(), changes));
    EXPECT_EQ(config.status().code(), absl::StatusCode::kInvalidArgument)
        << changes;
    EXPECT_THAT(config.status().message(), HasSubstr(message)) << changes;
    EXPECT_THAT(config.status().message(), HasSubstr("/config.json: "));
  }
  for (const json& window : {json(0), json(-1), json("8"), json(1.5)}) {
    EXPECT_FALSE(LoadConfig(With(ConfigJson("MistralForCausalLM"),
                                 {{"sliding_window", window}}))
                     .ok())
        << window;
  }
  for (const json& types : {json("full"), json({"full_attention"})}) {
    EXPECT_FALSE(LoadConfig(With(ConfigJson("Qwen2ForCausalLM"),
                                 {{"layer_types", types}}))
                     .ok());
  }
}

// What the rest of the engine relies on.
void ExpectConsistent(const ModelConfig& c) {
  EXPECT_GE(c.hidden_size, 1);
  EXPECT_GE(c.num_layers, 1);
  EXPECT_GE(c.num_kv_heads, 1);
  EXPECT_GE(c.vocab_size, 1);
  EXPECT_GE(c.max_position, 1);
  EXPECT_EQ(c.num_heads % c.num_kv_heads, 0);
  EXPECT_EQ(c.head_dim % 2, 0);
  EXPECT_EQ(c.RotaryDim() % 2, 0);
  EXPECT_GE(c.RotaryDim(), 2);
  EXPECT_LE(c.RotaryDim(), c.head_dim);
  EXPECT_GT(c.rms_norm_eps, 0);
  EXPECT_LT(int64_t{c.num_heads} * c.head_dim, int64_t{1} << 31);
  EXPECT_GE(c.sliding_window.value_or(1), 1);
  EXPECT_LE(c.experts.per_token, c.experts.count);
  ASSERT_GE(c.experts.groups, 1);
  EXPECT_EQ(c.experts.count % c.experts.groups, 0);
  EXPECT_LE(c.experts.chosen_groups, c.experts.groups);
  EXPECT_EQ(c.IsLatent() ? c.latent.rank + c.latent.rope_dim : c.head_dim,
            c.head_dim);
  for (int32_t layer = 0; layer < c.num_layers; ++layer) {
    EXPECT_GE(c.LayerHasExperts(layer) ? c.experts.intermediate_size
                                       : c.intermediate_size,
              1);
  }
  EXPECT_TRUE(c.layer_slides.empty() ||
              c.layer_slides.size() == static_cast<size_t>(c.num_layers));
  for (TokenId token : c.eos_token_ids) EXPECT_LT(token, c.vocab_size);
}

TEST(ModelConfigTest, SurvivesDamagedText) {
  json config = With(ConfigJson("Qwen2ForCausalLM"),
                     {{"use_sliding_window", true},
                      {"max_window_layers", 1},
                      {"sliding_window", 8},
                      {"rope_scaling", {{"type", "linear"}, {"factor", 2}}}});
  const std::string text = config.dump();
  ModelDir dir;
  std::mt19937 random(2);
  int loaded = 0;
  for (int i = 0; i < 1500; ++i) {
    dir.Write("config.json", Mutate(text, random));
    const auto result = LoadModelConfig(dir.path());
    if (result.ok()) ExpectConsistent(*result);
    loaded += result.ok();
  }
  EXPECT_GT(loaded, 0);
}

TEST(ModelConfigTest, SurvivesStrangeValues) {
  const std::vector<json> strange = {nullptr,
                                     true,
                                     "",
                                     -1,
                                     0,
                                     1,
                                     2,
                                     7,
                                     1 << 17,
                                     INT32_MAX,
                                     INT64_MIN,
                                     INT64_MAX,
                                     UINT64_MAX,
                                     1e308,
                                     -0.0,
                                     1e-320,
                                     json::array(),
                                     json::object(),
                                     json::array({1, 2}),
                                     {{"type", "linear"}, {"factor", 1e9}},
                                     std::string(300, 'x')};
  ModelDir dir;
  std::mt19937 random(3);
  int loaded = 0;
  for (const char* architecture :
       {"LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM",
        "Qwen3ForCausalLM", "MixtralForCausalLM", "Qwen3MoeForCausalLM",
        "Glm4MoeForCausalLM", "Phi3ForCausalLM", "SmolLM3ForCausalLM",
        "GptOssForCausalLM", "DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM",
        "Glm4MoeLiteForCausalLM"}) {
    const json base =
        With(ConfigJson(architecture), {{"head_dim", 4},
                                        {"rope_theta", 1e4},
                                        {"rope_scaling", nullptr},
                                        {"rope_parameters", nullptr},
                                        {"sliding_window", 8},
                                        {"use_sliding_window", true},
                                        {"max_window_layers", 1},
                                        {"layer_types", nullptr},
                                        {"num_local_experts", 4},
                                        {"num_experts", 4},
                                        {"num_experts_per_tok", 2},
                                        {"moe_intermediate_size", 8},
                                        {"norm_topk_prob", true},
                                        {"decoder_sparse_step", 1},
                                        {"mlp_only_layers", {0}},
                                        {"n_routed_experts", 4},
                                        {"n_shared_experts", 1},
                                        {"n_group", 1},
                                        {"topk_group", 1},
                                        {"topk_method", nullptr},
                                        {"scoring_func", nullptr},
                                        {"moe_layer_freq", 1},
                                        {"mlp_layer_types", nullptr},
                                        {"q_lora_rank", nullptr},
                                        {"kv_lora_rank", 32},
                                        {"qk_nope_head_dim", 6},
                                        {"qk_rope_head_dim", 4},
                                        {"v_head_dim", 64},
                                        {"rope_interleave", true},
                                        {"routed_scaling_factor", 2.5},
                                        {"first_k_dense_replace", 1},
                                        {"partial_rotary_factor", 1.0},
                                        {"use_qk_norm", true},
                                        {"swiglu_limit", 7.0},
                                        {"attention_bias", false}});
    std::vector<std::string> names;
    for (const auto& [name, value] : base.items()) names.push_back(name);
    for (int i = 0; i < 300; ++i) {
      json config = base;
      for (int j = 0; j < 2; ++j) {
        config[names[random() % names.size()]] =
            strange[random() % strange.size()];
      }
      dir.Write("config.json", config.dump());
      const auto result = LoadModelConfig(dir.path());
      if (result.ok()) ExpectConsistent(*result);
      loaded += result.ok();
    }
  }
  EXPECT_GT(loaded, 0);
}

}  // namespace
}  // namespace baton::engine
