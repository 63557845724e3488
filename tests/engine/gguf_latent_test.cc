// GGUF files of `deepseek2`: what they say, what they do not, and what is wrong
// with one.
#include <cmath>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/latent_config.h"
#include "engine/model_config.h"
#include "engine/weights.h"
#include "tests/engine/model_dir.h"
#include "tests/support/gguf_writer.h"

namespace baton::engine::gguf_latent_test {
namespace {

using test::GgufWriter;
using testing::AllOf;
using testing::HasSubstr;

LoadedModel Load(const GgufWriter& writer) {
  const ModelDir dir;
  dir.Write("m.gguf", writer.Finish());
  return LoadModel(dir.File("m.gguf"));
}

GgufWriter V2() { return test::GgufOfModelDir(GoldenDir("deepseek_v2")); }
GgufWriter V3() { return test::GgufOfModelDir(GoldenDir("deepseek_v3")); }

TEST(GgufLatentTest, IsTheDirectory) {
  for (const char* const name : {"deepseek_v2", "deepseek_v3"}) {
    const LoadedModel dir = LoadModel(GoldenDir(name));
    ASSERT_TRUE(dir.status.ok()) << dir.status;
    for (const bool older : {false, true}) {
      const LoadedModel file =
          Load(test::GgufOfModelDir(GoldenDir(name), older));
      ASSERT_TRUE(file.status.ok()) << file.status;
      EXPECT_EQ(file.config.architecture, dir.config.architecture);
      EXPECT_EQ(file.config.head_dim, dir.config.head_dim);
      EXPECT_EQ(file.config.num_kv_heads, 1);
      EXPECT_EQ(file.config.RotaryDim(), dir.config.RotaryDim());
      EXPECT_EQ(file.config.latent.query_rank, dir.config.latent.query_rank);
      EXPECT_EQ(file.config.latent.nope_dim, dir.config.latent.nope_dim);
      EXPECT_EQ(file.config.latent.value_dim, dir.config.latent.value_dim);
      EXPECT_NEAR(file.config.ScoreScale(), dir.config.ScoreScale(), 1e-7);
      EXPECT_EQ(file.config.experts.groups, dir.config.experts.groups);
      EXPECT_EQ(file.config.experts.shared, dir.config.experts.shared);
      EXPECT_EQ(file.config.experts.score, dir.config.experts.score);
      const auto matrices = file.weights.AllMatrices();
      const auto originals = dir.weights.AllMatrices();
      ASSERT_EQ(matrices.size(), originals.size());
      for (size_t i = 0; i < matrices.size(); ++i) {
        EXPECT_EQ(AllRows(*matrices[i]), AllRows(*originals[i]))
            << matrices[i]->name << " " << older;
      }
    }
  }
}

// Files from before there were groups in them mean one.
TEST(GgufLatentTest, WhatOlderFilesDoNotSay) {
  GgufWriter writer = V3();
  writer.Remove("deepseek2.expert_group_count");
  writer.Remove("deepseek2.expert_group_used_count");
  const LoadedModel ungrouped = Load(writer);
  ASSERT_TRUE(ungrouped.status.ok()) << ungrouped.status;
  EXPECT_EQ(ungrouped.config.experts.groups, 1);
  // Nor how experts are scored: V2's by softmax.
  writer = V2();
  writer.Remove("deepseek2.expert_gating_func");
  const LoadedModel unscored = Load(writer);
  ASSERT_TRUE(unscored.status.ok()) << unscored.status;
  EXPECT_EQ(unscored.config.architecture, Architecture::kDeepseekV2);
  // Nor what scores are multiplied by.
  writer = V3();
  writer.Remove("deepseek2.rope.scaling.yarn_log_multiplier");
  const LoadedModel unscaled = Load(writer);
  ASSERT_TRUE(unscaled.status.ok()) << unscaled.status;
  EXPECT_NEAR(unscaled.config.ScoreScale(), 1 / std::sqrt(28.0), 1e-9);
}

TEST(GgufLatentTest, WrongOnesAreNamed) {
  using Code = absl::StatusCode;
  const std::string p = "deepseek2.";
  const std::vector<std::tuple<const char*, uint32_t, Code, std::string>>
      wrong = {{"attention.kv_lora_rank", 0, Code::kInvalidArgument,
                "attention.kv_lora_rank is 0"},
               {"attention.kv_lora_rank", 40, Code::kUnimplemented,
                "a rank of keys and values of 40; Baton knows multiples of 16"},
               {"attention.key_length_mla", 12, Code::kInvalidArgument,
                "attention.key_length is 12, it must be more than"},
               {"attention.value_length_mla", 60, Code::kUnimplemented,
                "values of 60 elements"},
               {"rope.dimension_count", 11, Code::kInvalidArgument,
                "they must be pairs"},
               {"expert_gating_func", 3, Code::kUnimplemented,
                "expert_gating_func is 3; Baton knows 1, softmax, and 2"},
               {"expert_group_count", 4, Code::kInvalidArgument,
                "expert_group_count is 4, it must divide expert_count (9)"},
               {"expert_group_used_count", 9, Code::kInvalidArgument,
                "expert_group_used_count is 9"}};
  for (const auto& [key, value, code, message] : wrong) {
    GgufWriter writer = V3();
    writer.Remove(p + key);
    writer.AddUint32(p + key, value);
    const absl::Status status = Load(writer).status;
    EXPECT_EQ(status.code(), code) << key << " " << status;
    EXPECT_THAT(status.message(),
                AllOf(HasSubstr("m.gguf"), HasSubstr(message)));
  }
}

TEST(GgufLatentTest, AMissingTensorIsNamed) {
  for (const char* const name :
       {"blk.1.attn_q_a.weight", "blk.1.attn_q_a_norm.weight",
        "blk.1.attn_q_b.weight", "blk.1.attn_kv_a_mqa.weight",
        "blk.1.attn_kv_a_norm.weight", "blk.1.attn_v_b.weight",
        "blk.1.ffn_up_shexp.weight"}) {
    GgufWriter writer = V3();
    writer.Remove(name);
    const absl::Status status = Load(writer).status;
    EXPECT_EQ(status.code(), absl::StatusCode::kNotFound) << status;
    EXPECT_THAT(status.message(), HasSubstr(name));
  }
}

}  // namespace
}  // namespace baton::engine::gguf_latent_test
