// Of config.json, what it says of RoPE.
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/model_config.h"
#include "tests/engine/model_dir.h"

namespace baton::engine {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;

TEST(RopeConfigTest, RopeScalings) {
  const auto scaled = [](const json& scaling) {
    return MustLoadConfig(With(LlamaConfigJson(), {{"rope_scaling", scaling}}));
  };
  EXPECT_EQ(scaled({{"rope_type", "default"}}).rope_scaling.kind,
            RopeScaling::Kind::kNone);
  for (const char* key : {"type", "rope_type"}) {
    const ModelConfig linear = scaled({{key, "linear"}, {"factor", 4}});
    EXPECT_EQ(linear.rope_scaling.kind, RopeScaling::Kind::kLinear);
    EXPECT_EQ(linear.rope_scaling.factor, 4.0);
  }
  const json llama3 = {{"rope_type", "llama3"},
                       {"factor", 32.0},
                       {"low_freq_factor", 1.0},
                       {"high_freq_factor", 4.0},
                       {"original_max_position_embeddings", 8192}};
  const ModelConfig config = scaled(llama3);
  EXPECT_EQ(config.rope_scaling.kind, RopeScaling::Kind::kLlama3);
  EXPECT_EQ(config.rope_scaling.factor, 32.0);
  EXPECT_EQ(config.rope_scaling.high_freq_factor, 4.0);
  EXPECT_EQ(config.rope_scaling.original_max_position, 8192);

  // As transformers 5 writes it.
  json parameters = llama3;
  parameters["rope_theta"] = 5e5;
  const ModelConfig newer = MustLoadConfig(
      With(LlamaConfigJson(), {{"rope_parameters", parameters}}));
  EXPECT_EQ(newer.rope_theta, 5e5);
  EXPECT_EQ(newer.rope_scaling.kind, RopeScaling::Kind::kLlama3);
  EXPECT_EQ(MustLoadConfig(With(LlamaConfigJson(),
                                {{"rope_parameters", {{"rope_theta", 77.0}}}}))
                .rope_theta,
            77.0);
}

TEST(RopeConfigTest, Yarn) {
  const auto read = [](const json& changes = json::object(),
                       const json& others = json::object()) {
    json yarn = {{"rope_type", "yarn"}, {"factor", 4.0}};
    yarn.update(changes);
    json config = LlamaConfigJson();
    config["max_position_embeddings"] = 100;
    config["rope_scaling"] = yarn;
    return MustLoadConfig(With(config, others));
  };
  ModelConfig config = read();
  EXPECT_EQ(config.rope_scaling.kind, RopeScaling::Kind::kYarn);
  EXPECT_EQ(config.rope_scaling.factor, 4.0);
  EXPECT_EQ(config.rope_scaling.beta_fast, 32.0);
  EXPECT_EQ(config.rope_scaling.beta_slow, 1.0);
  EXPECT_TRUE(config.rope_scaling.truncate);
  EXPECT_NEAR(config.rope_scaling.attention_factor, 1.138629436, 1e-9);
  // The config's context where it names no other; four times that.
  EXPECT_EQ(config.rope_scaling.original_max_position, 100);
  EXPECT_EQ(config.max_position, 400);
  config = read({{"original_max_position_embeddings", 50}, {"factor", 1.5}});
  EXPECT_EQ(config.rope_scaling.original_max_position, 50);
  EXPECT_EQ(config.max_position, 100);
  config = read({{"beta_fast", 16}, {"beta_slow", 2}, {"truncate", false}});
  EXPECT_EQ(config.rope_scaling.beta_fast, 16.0);
  EXPECT_EQ(config.rope_scaling.beta_slow, 2.0);
  EXPECT_FALSE(config.rope_scaling.truncate);
  EXPECT_EQ(read({{"attention_factor", 1.5}}).rope_scaling.attention_factor,
            1.5);
  EXPECT_EQ(read({{"factor", 1.0}}).rope_scaling.attention_factor, 1.0);
  // As DeepSeek's files have it.
  EXPECT_NEAR(read({{"mscale", 2.0}, {"mscale_all_dim", 1.0}})
                  .rope_scaling.attention_factor,
              1.277258872 / 1.138629436, 1e-9);
  EXPECT_EQ(read({{"mscale", 0.7}, {"mscale_all_dim", 0.7}})
                .rope_scaling.attention_factor,
            1.0);
  // Of newer files.
  config =
      read(json::object(), {{"rope_scaling", nullptr},
                            {"rope_parameters",
                             {{"rope_type", "yarn"},
                              {"rope_theta", 1e6},
                              {"factor", 2.0},
                              {"original_max_position_embeddings", 100}}}});
  EXPECT_EQ(config.rope_scaling.factor, 2.0);
  EXPECT_EQ(config.max_position, 200);
  // Of files that say it twice, and of ones whose older field says otherwise.
  const json twice = {{"rope_type", "yarn"}, {"factor", 2.0}};
  EXPECT_EQ(read({{"factor", 2.0}}, {{"rope_parameters", twice}}).max_position,
            200);
  config = read(json::object(), {{"rope_scaling", {{"type", "default"}}},
                                 {"rope_parameters", twice}});
  EXPECT_EQ(config.rope_scaling.kind, RopeScaling::Kind::kNone);
  EXPECT_EQ(config.max_position, 100);
}

// Of a model with heads of 8 elements, of which 4 turn.
json LongRopeConfig(const json& rope = json::object(),
                    const json& beside = json::object()) {
  json scaling = {{"type", "longrope"},
                  {"short_factor", {1.0, 1.5}},
                  {"long_factor", {2.0, 30}}};
  scaling.update(rope);
  return With(With(ConfigJson("Phi3ForCausalLM"),
                   {{"head_dim", 8},
                    {"partial_rotary_factor", 0.5},
                    {"max_position_embeddings", 64},
                    {"original_max_position_embeddings", 16},
                    {"rope_scaling", scaling}}),
              beside);
}

TEST(RopeConfigTest, LongRope) {
  const auto read = [](const json& rope = json::object(),
                       const json& beside = json::object()) {
    return MustLoadConfig(LongRopeConfig(rope, beside));
  };
  ModelConfig config = read();
  EXPECT_EQ(config.rope_scaling.kind, RopeScaling::Kind::kFactors);
  EXPECT_THAT(config.rope_scaling.factors, ElementsAre(2.0, 30.0));
  // sqrt(1 + ln 4 / ln 16); the context stays as the file says.
  EXPECT_DOUBLE_EQ(config.rope_scaling.attention_factor, std::sqrt(1.5));
  EXPECT_EQ(config.max_position, 64);
  // A context that is not stretched, and what it would be multiplied by.
  config = read(json::object(), {{"max_position_embeddings", 16}});
  EXPECT_THAT(config.rope_scaling.factors, ElementsAre(1.0, 1.5));
  EXPECT_EQ(config.rope_scaling.attention_factor, 1.0);
  config = read({{"factor", 4}}, {{"max_position_embeddings", 16}});
  EXPECT_THAT(config.rope_scaling.factors, ElementsAre(1.0, 1.5));
  EXPECT_DOUBLE_EQ(config.rope_scaling.attention_factor, std::sqrt(1.5));
  EXPECT_EQ(read({{"attention_factor", 1.25}}).rope_scaling.attention_factor,
            1.25);
  // The object goes before what is beside it.
  EXPECT_EQ(read({{"original_max_position_embeddings", 64}})
                .rope_scaling.attention_factor,
            1.0);
  // What Phi's files called it, and no others.
  for (const char* const kind : {"su", "yarn"}) {
    EXPECT_THAT(read({{"type", kind}}).rope_scaling.factors,
                ElementsAre(2.0, 30.0));
  }
  json llama = LongRopeConfig({{"type", "su"}},
                              {{"partial_rotary_factor", 1}, {"head_dim", 4}});
  llama["architectures"] = {"LlamaForCausalLM"};
  EXPECT_EQ(LoadConfig(llama).status().code(),
            absl::StatusCode::kUnimplemented);
  llama["rope_scaling"]["type"] = "longrope";
  EXPECT_THAT(MustLoadConfig(llama).rope_scaling.factors,
              ElementsAre(2.0, 30.0));
}

TEST(RopeConfigTest, BadLongRopesAreNamed) {
  for (const auto& [rope, message] : std::vector<std::pair<json, std::string>>{
           {{{"long_factor", nullptr}}, "rope_scaling.long_factor is null"},
           {{{"long_factor", {1}}}, "rope_scaling.long_factor is [1]"},
           {{{"short_factor", {1, 0}}}, "rope_scaling.short_factor is [1"},
           {{{"short_factor", 3}}, "a list of rotary_dim / 2 (2) numbers"},
           {{{"factor", "x"}}, "rope_scaling.factor is \"x\""},
           {{{"attention_factor", 0}}, "rope_scaling.attention_factor is 0"},
           {{{"original_max_position_embeddings", 1}},
            "rope_scaling.original_max_position_embeddings is 1"}}) {
    const auto config = LoadConfig(LongRopeConfig(rope));
    EXPECT_EQ(config.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(config.status().message(), HasSubstr(message));
  }
  const auto beside = LoadConfig(LongRopeConfig(
      json::object(), {{"original_max_position_embeddings", "x"}}));
  EXPECT_THAT(beside.status().message(),
              HasSubstr(": original_max_position_embeddings is \"x\""));
  const auto other = LoadConfig(LongRopeConfig({{"long_mscale", 1.2}}));
  EXPECT_EQ(other.status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(other.status().message(), HasSubstr("rope_scaling.long_mscale"));
}

TEST(RopeConfigTest, LayersThatKnowNoPositions) {
  const json base =
      With(ConfigJson("SmolLM3ForCausalLM"), {{"num_hidden_layers", 5}});
  const auto turns = [&](const json& changes) {
    const ModelConfig config = MustLoadConfig(With(base, changes));
    std::string all;
    for (int32_t i = 0; i < 5; ++i) all += config.LayerTurns(i) ? 'y' : 'n';
    return all;
  };
  EXPECT_EQ(turns(json::object()), "yyyny");
  EXPECT_EQ(turns({{"no_rope_layer_interval", 2}}), "ynyny");
  EXPECT_EQ(turns({{"no_rope_layers", {1, 0, 0, 1, 1}}}), "ynnyy");
  EXPECT_EQ(turns({{"no_rope_layers", {1, 1, 1, 1, 1}}}), "yyyyy");
  // Others know nothing of it.
  EXPECT_TRUE(MustLoadConfig(With(LlamaConfigJson(), {{"no_rope_layers", 3}}))
                  .layer_turns.empty());
  for (const auto& [changes, message] :
       std::vector<std::pair<json, std::string>>{
           {{{"no_rope_layers", 3}}, "no_rope_layers is 3"},
           {{{"no_rope_layers", {1, 0}}}, "no_rope_layers is [1"},
           {{{"no_rope_layers", {1, 0, 2, 1, 1}}}, "no_rope_layers is 2"},
           {{{"no_rope_layer_interval", 0}}, "no_rope_layer_interval is 0"}}) {
    const auto config = LoadConfig(With(base, changes));
    EXPECT_EQ(config.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(config.status().message(), HasSubstr(message));
  }
  EXPECT_EQ(
      LoadConfig(With(base, {{"use_sliding_window", true}})).status().code(),
      absl::StatusCode::kUnimplemented);
}

TEST(RopeConfigTest, BadYarnsAreNamed) {
  for (const auto& [changes, message] :
       std::vector<std::pair<json, std::string>>{
           {{{"factor", nullptr}}, "rope_scaling.factor is missing"},
           {{{"factor", 0.5}}, "rope_scaling.factor is 0.5"},
           {{{"beta_fast", 1}}, "rope_scaling.beta_fast is 1"},
           {{{"beta_slow", 40}}, "rope_scaling.beta_fast is 32"},
           {{{"beta_slow", 0}}, "rope_scaling.beta_slow is 0"},
           {{{"truncate", 1}}, "rope_scaling.truncate is 1"},
           {{{"attention_factor", 0}}, "rope_scaling.attention_factor is 0"},
           {{{"mscale", "x"}}, "rope_scaling.mscale is \"x\""},
           {{{"rope_theta", 1}}, "rope_scaling.rope_theta is 1"},
           {{{"original_max_position_embeddings", 0}},
            "rope_scaling.original_max_position_embeddings is 0"}}) {
    json yarn = {{"rope_type", "yarn"}, {"factor", 4.0}};
    yarn.update(changes);
    const auto config =
        LoadConfig(With(LlamaConfigJson(), {{"rope_scaling", yarn}}));
    EXPECT_EQ(config.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(config.status().message(), HasSubstr(message));
  }
}

TEST(RopeConfigTest, PartsOfHeadsThatTurn) {
  const json glm = With(ConfigJson("Glm4MoeForCausalLM"), {{"head_dim", 20}});
  const auto rotary_dim = [&](const json& changes) {
    const auto config = LoadConfig(With(glm, changes));
    EXPECT_TRUE(config.ok()) << config.status();
    return config->RotaryDim();
  };
  // As transformers: half where the file does not say it.
  EXPECT_EQ(rotary_dim({}), 10);
  EXPECT_EQ(rotary_dim({{"partial_rotary_factor", 0.2}}), 4);
  EXPECT_EQ(rotary_dim({{"partial_rotary_factor", 1}}), 20);
  EXPECT_EQ(rotary_dim({{"rope_parameters", {{"rope_theta", 1e6}}}}), 10);
  const json phi = With(ConfigJson("Phi3ForCausalLM"), {{"head_dim", 16}});
  EXPECT_EQ(MustLoadConfig(phi).RotaryDim(), 16);
  EXPECT_EQ(
      MustLoadConfig(With(phi, {{"partial_rotary_factor", 0.75}})).RotaryDim(),
      12);
  EXPECT_EQ(rotary_dim({{"rope_parameters", {{"partial_rotary_factor", 0.6}}},
                        {"partial_rotary_factor", 0.2}}),
            12);
  for (const auto& [changes, message] :
       std::vector<std::pair<json, std::string>>{
           {{{"partial_rotary_factor", 0.25}}, "partial_rotary_factor is 0.25"},
           {{{"partial_rotary_factor", 0}}, "partial_rotary_factor is 0"},
           {{{"partial_rotary_factor", 1.5}}, "partial_rotary_factor is 1.5"},
           {{{"head_dim", 6}}, "partial_rotary_factor is 0.5, it must be"},
           {{{"rope_parameters", {{"partial_rotary_factor", "x"}}}},
            "rope_parameters.partial_rotary_factor is \"x\""}}) {
    const auto config = LoadConfig(With(glm, changes));
    EXPECT_EQ(config.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(config.status().message(), HasSubstr(message));
  }
}

}  // namespace
}  // namespace baton::engine
