// Of config.json, what it says of experts.
#include "engine/feed_forward_config.h"

#include <string>
#include <tuple>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/engine/model_dir.h"

namespace baton::engine {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;

TEST(FeedForwardConfigTest, MixturesOfExperts) {
  const ModelConfig dense = MustLoadConfig(ConfigJson("Qwen3ForCausalLM"));
  EXPECT_EQ(dense.experts.count, 0);
  EXPECT_FALSE(dense.LayerHasExperts(0));

  json mixtral = ConfigJson("MixtralForCausalLM");
  mixtral["intermediate_size"] = 40;
  ModelConfig config = MustLoadConfig(mixtral);
  EXPECT_EQ(config.experts.count, 8);
  EXPECT_EQ(config.experts.per_token, 2);
  EXPECT_EQ(config.experts.intermediate_size, 40);
  EXPECT_TRUE(config.experts.normalized);
  EXPECT_TRUE(config.LayerHasExperts(0) && config.LayerHasExperts(1));
  EXPECT_EQ(config.intermediate_size, 0);
  EXPECT_FALSE(config.qk_norm);
  // What transformers takes where the file says nothing.
  EXPECT_FALSE(config.sliding_window.has_value());
  EXPECT_EQ(config.num_kv_heads, 2);
  json bare = With(mixtral, {{"num_key_value_heads", "(erase)"},
                             {"num_attention_heads", 8},
                             {"rms_norm_eps", "(erase)"}});
  EXPECT_EQ(MustLoadConfig(bare).num_kv_heads, 8);
  EXPECT_EQ(MustLoadConfig(bare).rms_norm_eps, 1e-5);
  EXPECT_EQ(MustLoadConfig(bare).rope_theta, 1e6);
  bare["sliding_window"] = 16;
  EXPECT_EQ(MustLoadConfig(bare).sliding_window, 16);

  json qwen =
      With(ConfigJson("Qwen3MoeForCausalLM"), {{"num_hidden_layers", 4}});
  config = MustLoadConfig(qwen);
  EXPECT_EQ(config.experts.count, 128);
  EXPECT_EQ(config.experts.per_token, 8);
  EXPECT_EQ(config.experts.intermediate_size, 768);
  EXPECT_FALSE(config.experts.normalized);
  EXPECT_TRUE(config.qk_norm);
  EXPECT_TRUE(config.layer_has_experts.empty());
  // Not needed where all layers have experts.
  config = MustLoadConfig(With(qwen, {{"intermediate_size", "(erase)"},
                                      {"num_experts", 6},
                                      {"num_experts_per_tok", 6},
                                      {"moe_intermediate_size", 24},
                                      {"norm_topk_prob", true}}));
  EXPECT_EQ(config.experts.count, 6);
  EXPECT_EQ(config.experts.per_token, 6);
  EXPECT_EQ(config.experts.intermediate_size, 24);
  EXPECT_TRUE(config.experts.normalized);
  config = MustLoadConfig(With(qwen, {{"decoder_sparse_step", 2},
                                      {"mlp_only_layers", {1, 99}},
                                      {"intermediate_size", 32}}));
  EXPECT_THAT(config.layer_has_experts, ElementsAre(false, false, false, true));
  EXPECT_EQ(config.intermediate_size, 32);
  config = MustLoadConfig(With(qwen, {{"num_experts", 0}}));
  EXPECT_EQ(config.experts.count, 0);
  config = MustLoadConfig(With(qwen, {{"mlp_only_layers", {0, 1, 2, 3}}}));
  EXPECT_EQ(config.experts.count, 0);
}

TEST(FeedForwardConfigTest, MixturesWithASharedExpert) {
  const json glm = With(ConfigJson("Glm4MoeForCausalLM"),
                        {{"num_hidden_layers", 4}, {"intermediate_size", 32}});
  // What transformers takes where the file says nothing.
  ModelConfig config = MustLoadConfig(glm);
  EXPECT_EQ(config.experts.count, 128);
  EXPECT_EQ(config.experts.per_token, 8);
  EXPECT_EQ(config.experts.shared, 1);
  EXPECT_EQ(config.experts.all(), 129);
  EXPECT_EQ(config.experts.passed(), 9);
  EXPECT_EQ(config.experts.intermediate_size, 1408);
  EXPECT_EQ(config.experts.score, ExpertsConfig::Score::kSigmoid);
  EXPECT_TRUE(config.experts.choice_bias);
  EXPECT_TRUE(config.experts.normalized);
  EXPECT_EQ(config.experts.scale, 1.0);
  EXPECT_THAT(config.layer_has_experts, ElementsAre(false, true, true, true));
  EXPECT_EQ(config.intermediate_size, 32);
  EXPECT_FALSE(config.qk_norm || config.qkv_bias || config.o_bias);

  config = MustLoadConfig(With(glm, {{"n_routed_experts", 6},
                                     {"n_shared_experts", 0},
                                     {"num_experts_per_tok", 6},
                                     {"moe_intermediate_size", 24},
                                     {"norm_topk_prob", false},
                                     {"routed_scaling_factor", 2.5},
                                     {"first_k_dense_replace", 0},
                                     {"intermediate_size", "(erase)"},
                                     {"attention_bias", true},
                                     {"use_qk_norm", true}}));
  EXPECT_EQ(config.experts.all(), 6);
  EXPECT_EQ(config.experts.passed(), 6);
  EXPECT_FALSE(config.experts.normalized);
  EXPECT_EQ(config.experts.scale, 2.5);
  EXPECT_TRUE(config.layer_has_experts.empty());
  EXPECT_TRUE(config.qk_norm && config.qkv_bias);
  EXPECT_FALSE(config.o_bias);
  config = MustLoadConfig(With(glm, {{"first_k_dense_replace", 9}}));
  EXPECT_EQ(config.experts.count, 0);
}

TEST(FeedForwardConfigTest, ExpertsInGroups) {
  const json glm = ConfigJson("Glm4MoeForCausalLM");
  ModelConfig config = MustLoadConfig(
      With(glm, {{"n_group", 8}, {"topk_group", 4}, {"n_shared_experts", 2}}));
  EXPECT_EQ(config.experts.groups, 8);
  EXPECT_EQ(config.experts.chosen_groups, 4);
  EXPECT_EQ(config.experts.shared, 2);
  EXPECT_EQ(config.experts.all(), 130);
  // All of them are no choice.
  config = MustLoadConfig(With(glm, {{"n_group", 8}, {"topk_group", 8}}));
  EXPECT_EQ(config.experts.groups, 1);
  EXPECT_EQ(config.experts.chosen_groups, 1);
  config =
      MustLoadConfig(With(glm, {{"mlp_layer_types", {"sparse", "dense"}}}));
  EXPECT_THAT(config.layer_has_experts, ElementsAre(true, false));
}

TEST(FeedForwardConfigTest, MixturesOfGptOss) {
  // What transformers takes where the file says nothing.
  const json gpt_oss =
      With(ConfigJson("GptOssForCausalLM"), {{"intermediate_size", "(erase)"},
                                             {"num_attention_heads", 8},
                                             {"num_key_value_heads", "(erase)"},
                                             {"num_hidden_layers", 3},
                                             {"rms_norm_eps", "(erase)"},
                                             {"rope_theta", "(erase)"}});
  ModelConfig config = MustLoadConfig(gpt_oss);
  EXPECT_EQ(config.experts.count, 128);
  EXPECT_EQ(config.experts.per_token, 4);
  EXPECT_EQ(config.experts.intermediate_size, 2880);
  EXPECT_EQ(config.experts.score, ExpertsConfig::Score::kSoftmax);
  EXPECT_EQ(config.experts.swiglu_limit, 7.0);
  EXPECT_TRUE(config.experts.normalized && config.experts.router_bias &&
              config.experts.bias);
  EXPECT_TRUE(config.layer_has_experts.empty());
  EXPECT_TRUE(config.attention_sinks && config.qkv_bias && config.o_bias);
  EXPECT_EQ(config.head_dim, 64);
  EXPECT_EQ(config.num_kv_heads, 8);
  EXPECT_EQ(config.rms_norm_eps, 1e-5);
  EXPECT_EQ(config.rope_theta, 1.5e5);
  EXPECT_EQ(config.sliding_window, 128);
  EXPECT_THAT(config.layer_slides, ElementsAre(true, false, true));
  EXPECT_FALSE(MustLoadConfig(ConfigJson("LlamaForCausalLM")).attention_sinks);

  config = MustLoadConfig(With(
      gpt_oss, {{"num_local_experts", 6},
                {"num_experts_per_tok", 2},
                {"intermediate_size", 64},
                {"swiglu_limit", 3.5},
                {"attention_bias", false},
                {"sliding_window", 16},
                {"layer_types",
                 {"full_attention", "sliding_attention", "full_attention"}}}));
  EXPECT_EQ(config.experts.count, 6);
  EXPECT_EQ(config.experts.per_token, 2);
  EXPECT_EQ(config.experts.intermediate_size, 64);
  EXPECT_EQ(config.experts.swiglu_limit, 3.5);
  EXPECT_FALSE(config.qkv_bias || config.o_bias);
  EXPECT_EQ(config.sliding_window, 16);
  EXPECT_THAT(config.layer_slides, ElementsAre(false, true, false));
  EXPECT_FALSE(MustLoadConfig(With(gpt_oss, {{"sliding_window", nullptr}}))
                   .sliding_window.has_value());
}

TEST(FeedForwardConfigTest, WrongFieldsAreNamed) {
  const json glm = ConfigJson("Glm4MoeForCausalLM");
  const json mixtral = ConfigJson("MixtralForCausalLM");
  const json qwen = ConfigJson("Qwen3MoeForCausalLM");
  const std::vector<std::tuple<json, json, std::string>> wrong = {
      {mixtral,
       {{"num_experts_per_tok", 9}},
       "num_experts_per_tok is 9, it must be at most the number of experts "
       "(8)"},
      {mixtral, {{"num_local_experts", 0}}, "num_local_experts is 0"},
      {mixtral, {{"num_local_experts", 5000}}, "num_local_experts is 5000"},
      {qwen, {{"num_experts", -1}}, "num_experts is -1"},
      {qwen, {{"moe_intermediate_size", 0}}, "moe_intermediate_size is 0"},
      {qwen, {{"decoder_sparse_step", 0}}, "decoder_sparse_step is 0"},
      {qwen, {{"mlp_only_layers", {"a"}}}, "mlp_only_layers is [\"a\"]"},
      {qwen, {{"mlp_only_layers", {-1}}}, "mlp_only_layers is [-1]"},
      {qwen, {{"norm_topk_prob", 1}}, "norm_topk_prob is 1"},
      {qwen,
       {{"num_experts", 1024}, {"num_hidden_layers", 300}},
       "num_hidden_layers is 300, it must be at most 256 with so many "
       "experts (1024)"},
      {glm, {{"n_routed_experts", 0}}, "n_routed_experts is 0"},
      {glm, {{"n_shared_experts", -1}}, "n_shared_experts is -1"},
      {glm, {{"routed_scaling_factor", 0}}, "routed_scaling_factor is 0"},
      {glm, {{"first_k_dense_replace", "a"}}, "first_k_dense_replace is \"a\""},
      {glm, {{"n_group", 7}}, "n_group is 7, it must be a divisor of"},
      {glm, {{"n_group", 128}, {"topk_group", 64}}, "n_group is 128, it must"},
      {glm,
       {{"n_group", 64}, {"topk_group", 3}},
       "topk_group is 3, it must be at most n_group (64), and so many that"},
      {glm, {{"topk_group", 2}}, "topk_group is 2, it must be at most n_group"},
      {glm,
       {{"mlp_layer_types", {"sparse"}}},
       "mlp_layer_types is [\"sparse\"], it must be a list of"},
      {glm,
       {{"mlp_layer_types", {"sparse", "moe"}}},
       "mlp_layer_types[1] is \"moe\""},
      {glm,
       {{"num_experts_per_tok", 129}},
       "num_experts_per_tok is 129, it must be at most the number of experts "
       "(128)"}};
  for (const auto& [base, changes, message] : wrong) {
    const auto result = LoadConfig(With(base, changes));
    EXPECT_EQ(result.status().code(), absl::StatusCode::kInvalidArgument)
        << changes;
    EXPECT_THAT(result.status().message(), HasSubstr(message));
  }
  const std::vector<std::tuple<json, json, std::string>> unknown = {
      {qwen, {{"use_sliding_window", true}}, "use_sliding_window"},
      {glm, {{"moe_layer_freq", 2}}, "moe_layer_freq is 2; Baton knows 1"},
      {glm, {{"scoring_func", "softmax"}}, "scoring_func is \"softmax\""},
      {glm, {{"topk_method", "greedy"}}, "topk_method is \"greedy\""}};
  for (const auto& [base, changes, message] : unknown) {
    const auto result = LoadConfig(With(base, changes));
    EXPECT_EQ(result.status().code(), absl::StatusCode::kUnimplemented)
        << changes;
    EXPECT_THAT(result.status().message(), HasSubstr(message));
  }
}

}  // namespace
}  // namespace baton::engine
