// GGUF files of gpt-oss: what they say, what all of these models have, and what
// is wrong with one.
#include <optional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/gguf/gguf_tensor_type.h"
#include "engine/float_convert.h"
#include "engine/model_config.h"
#include "engine/weights.h"
#include "tests/engine/model_dir.h"
#include "tests/support/gguf_writer.h"

namespace baton::engine::gguf_gpt_oss_test {
namespace {

using test::GgufWriter;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

LoadedModel Load(const GgufWriter& writer) {
  const ModelDir dir;
  dir.Write("m.gguf", writer.Finish());
  return LoadModel(dir.File("m.gguf"));
}

std::vector<float> Floats(const std::optional<TensorView>& view) {
  std::vector<float> values(view->num_elements());
  ConvertToFloat(view->dtype, view->bytes, absl::MakeSpan(values));
  return values;
}

TEST(GgufGptOssTest, IsTheDirectory) {
  const LoadedModel dir = LoadModel(GoldenDir("gpt_oss"));
  ASSERT_TRUE(dir.status.ok()) << dir.status;
  const LoadedModel file = Load(test::GgufOfModelDir(GoldenDir("gpt_oss")));
  ASSERT_TRUE(file.status.ok()) << file.status;
  const ModelConfig& config = file.config;
  EXPECT_EQ(config.architecture, Architecture::kGptOss);
  EXPECT_EQ(config.experts.count, 6);
  EXPECT_EQ(config.experts.per_token, 2);
  EXPECT_EQ(config.experts.intermediate_size, 96);
  // No file says it.
  EXPECT_EQ(config.experts.swiglu_limit, 7.0);
  EXPECT_TRUE(config.experts.normalized && config.experts.bias &&
              config.experts.router_bias);
  EXPECT_TRUE(config.attention_sinks && config.qkv_bias && config.o_bias);
  EXPECT_FALSE(config.mlp_bias || config.qk_norm);
  EXPECT_EQ(config.sliding_window, 9);
  EXPECT_THAT(config.layer_slides, ElementsAre(true, false, true));
  EXPECT_EQ(config.rope_scaling.kind, RopeScaling::Kind::kYarn);
  EXPECT_FALSE(config.rope_scaling.truncate);
  EXPECT_DOUBLE_EQ(config.rope_scaling.attention_factor,
                   dir.config.rope_scaling.attention_factor);
  for (int32_t i = 0; i < config.num_layers; ++i) {
    const LayerWeights& a = file.weights.layers[i];
    const LayerWeights& b = dir.weights.layers[i];
    EXPECT_EQ(Floats(a.sinks), Floats(b.sinks));
    EXPECT_EQ(Floats(a.router_bias), Floats(b.router_bias));
    ASSERT_EQ(a.experts.size(), b.experts.size());
    for (size_t e = 0; e < a.experts.size(); ++e) {
      EXPECT_EQ(a.experts[e].gate_proj.encoding, WeightEncoding::kGgufMxfp4);
      for (const auto part :
           {&ExpertWeights::gate_proj, &ExpertWeights::up_proj,
            &ExpertWeights::down_proj}) {
        EXPECT_EQ(AllRows(a.experts[e].*part), AllRows(b.experts[e].*part));
      }
      EXPECT_EQ(Floats(a.experts[e].gate_up_bias),
                Floats(b.experts[e].gate_up_bias));
      EXPECT_EQ(Floats(a.experts[e].down_bias), Floats(b.experts[e].down_bias));
    }
  }
}

TEST(GgufGptOssTest, WhatIsMissingIsNamed) {
  for (const char* name :
       {"gpt-oss.attention.sliding_window", "gpt-oss.expert_used_count",
        "gpt-oss.expert_feed_forward_length", "blk.1.attn_sinks.weight",
        "blk.1.ffn_gate_inp.bias", "blk.1.ffn_gate_exps.bias",
        "blk.2.ffn_up_exps.bias", "blk.2.ffn_down_exps.bias",
        "blk.0.post_attention_norm.weight"}) {
    GgufWriter writer = test::GgufOfModelDir(GoldenDir("gpt_oss"));
    writer.Remove(name);
    const absl::Status status = Load(writer).status;
    EXPECT_EQ(status.code(), absl::StatusCode::kNotFound) << name;
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("m.gguf"), HasSubstr(name)));
  }
}

TEST(GgufGptOssTest, WrongShapesAreNamed) {
  GgufWriter writer = test::GgufOfModelDir(GoldenDir("gpt_oss"));
  writer.AddTensor("blk.1.ffn_up_exps.bias", gguf::kF32, {6, 95},
                   std::string(6 * 95 * sizeof(float), '\0'));
  EXPECT_THAT(
      std::string(Load(writer).status.message()),
      HasSubstr("\"blk.1.ffn_up_exps.bias\" has shape [6, 95], the metadata "
                "ask for [6, 96]"));
  writer = test::GgufOfModelDir(GoldenDir("gpt_oss"));
  writer.AddUint32("gpt-oss.attention.sliding_window", 0);
  EXPECT_THAT(std::string(Load(writer).status.message()),
              HasSubstr("gpt-oss.attention.sliding_window"));
}

}  // namespace
}  // namespace baton::engine::gguf_gpt_oss_test
