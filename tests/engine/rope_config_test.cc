// Of config.json, what it says of RoPE.
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
