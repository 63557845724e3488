// GGUF files of Phi-3 and SmolLM3: what they say, what they do not, and what is
// wrong with one.
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/gguf/gguf_tensor_type.h"
#include "engine/model_config.h"
#include "engine/model_identity.h"
#include "engine/weights.h"
#include "tests/engine/model_dir.h"
#include "tests/support/gguf_writer.h"

namespace baton::engine::gguf_phi3_test {
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

ModelConfig MustLoad(const GgufWriter& writer) {
  const LoadedModel loaded = Load(writer);
  EXPECT_TRUE(loaded.status.ok()) << loaded.status;
  return loaded.config;
}

GgufWriter PhiGguf() { return test::GgufOfModelDir(GoldenDir("phi3")); }
GgufWriter LongGguf() { return test::GgufOfModelDir(GoldenDir("phi3_long")); }

TEST(GgufPhi3Test, IsTheDirectory) {
  const LoadedModel dir = LoadModel(GoldenDir("phi3"));
  ASSERT_TRUE(dir.status.ok()) << dir.status;
  const LoadedModel file = Load(PhiGguf());
  ASSERT_TRUE(file.status.ok()) << file.status;
  EXPECT_EQ(file.config.architecture, Architecture::kPhi3);
  EXPECT_EQ(file.config.sliding_window, 20);
  EXPECT_EQ(file.config.rotary_dim, 12);
  EXPECT_FALSE(file.config.qkv_bias || file.config.mlp_bias);
  const auto matrices = file.weights.AllMatrices();
  const auto originals = dir.weights.AllMatrices();
  ASSERT_EQ(matrices.size(), originals.size());
  for (size_t i = 0; i < matrices.size(); ++i) {
    EXPECT_EQ(AllRows(*matrices[i]), AllRows(*originals[i]))
        << matrices[i]->name;
    ReleasePages(*matrices[i]);
    EXPECT_EQ(AllRows(*matrices[i]), AllRows(*originals[i]));
  }
}

// Rows of blocks are parts as well: a third of the bytes.
TEST(GgufPhi3Test, PartsOfQuantizedMatrices) {
  GgufWriter writer = PhiGguf();
  // Blocks of 32: a row of the model's 48 is none.
  writer.AddUint32("phi3.embedding_length", 64);
  const auto rows = [](int64_t count) {
    std::string blocks;
    for (int64_t i = 0; i < 2 * count; ++i) {
      // A scale of 1 in float16, and 32 numbers that tell rows apart.
      blocks += std::string("\0\x3c", 2) +
                std::string(32, static_cast<char>(i / 2 % 100));
    }
    return blocks;
  };
  writer.AddTensor("token_embd.weight", gguf::kQ8_0, {138, 64}, rows(138));
  writer.AddTensor("output.weight", gguf::kQ8_0, {138, 64}, rows(138));
  const std::string ones(64 * sizeof(float), '\0');
  writer.AddTensor("output_norm.weight", gguf::kF32, {64}, ones);
  for (const char* const layer : {"blk.0.", "blk.1.", "blk.2."}) {
    const std::string p = layer;
    writer.AddTensor(p + "attn_norm.weight", gguf::kF32, {64}, ones);
    writer.AddTensor(p + "ffn_norm.weight", gguf::kF32, {64}, ones);
    writer.AddTensor(p + "attn_qkv.weight", gguf::kQ8_0, {160, 64}, rows(160));
    writer.AddTensor(p + "ffn_up.weight", gguf::kQ8_0, {144, 64}, rows(144));
    writer.AddTensor(p + "attn_output.weight", gguf::kF16, {64, 96},
                     std::string(64 * 96 * 2, '\0'));
    writer.AddTensor(p + "ffn_down.weight", gguf::kF16, {64, 72},
                     std::string(64 * 72 * 2, '\0'));
  }
  const LoadedModel loaded = Load(writer);
  ASSERT_TRUE(loaded.status.ok()) << loaded.status;
  const LayerWeights& w = loaded.weights.layers[1];
  const auto expect = [&](const WeightMatrix& matrix, int64_t first,
                          int64_t count) {
    ASSERT_EQ(matrix.rows, count);
    const std::vector<float> values = AllRows(matrix);
    for (int64_t row = 0; row < count; ++row) {
      EXPECT_EQ(values[row * 64 + 63], (first + row) % 100) << row;
    }
  };
  expect(w.q_proj, 0, 96);
  expect(w.k_proj, 96, 32);
  expect(w.v_proj, 128, 32);
  expect(w.gate_proj, 0, 72);
  expect(w.up_proj, 72, 72);
}

TEST(GgufPhi3Test, AttentionMayBeInThreeTensors) {
  const LoadedModel whole = Load(PhiGguf());
  ASSERT_TRUE(whole.status.ok()) << whole.status;
  GgufWriter writer = PhiGguf();
  for (int32_t i = 0; i < 3; ++i) {
    const LayerWeights& w = whole.weights.layers[i];
    const std::string p = "blk." + std::to_string(i) + ".attn_";
    writer.Remove(p + "qkv.weight");
    for (const auto& [name, matrix] :
         {std::pair("q", &w.q_proj), std::pair("k", &w.k_proj),
          std::pair("v", &w.v_proj)}) {
      writer.AddTensor(
          p + name + ".weight", gguf::kBf16, {matrix->rows, matrix->columns},
          std::string(
              reinterpret_cast<const char*>(matrix->values.bytes.data()),
              matrix->values.bytes.size()));
    }
  }
  const LoadedModel apart = Load(writer);
  ASSERT_TRUE(apart.status.ok()) << apart.status;
  const auto matrices = apart.weights.AllMatrices();
  const auto originals = whole.weights.AllMatrices();
  ASSERT_EQ(matrices.size(), originals.size());
  for (size_t i = 0; i < matrices.size(); ++i) {
    EXPECT_EQ(AllRows(*matrices[i]), AllRows(*originals[i]));
  }
}

TEST(GgufPhi3Test, Windows) {
  GgufWriter writer = PhiGguf();
  writer.AddUint32("phi3.attention.sliding_window", 0);
  EXPECT_FALSE(MustLoad(writer).sliding_window.has_value());
  writer.Remove("phi3.attention.sliding_window");
  EXPECT_FALSE(MustLoad(writer).sliding_window.has_value());
  // Of the first files of Phi-3-mini-4k and -medium-4k.
  writer.AddUint32("phi3.context_length", 4096);
  EXPECT_EQ(MustLoad(writer).sliding_window, 2047);
  writer.AddUint32("phi3.attention.sliding_window", 0);
  EXPECT_FALSE(MustLoad(writer).sliding_window.has_value());
}

TEST(GgufPhi3Test, LongRope) {
  ModelConfig config = MustLoad(LongGguf());
  EXPECT_EQ(config.rope_scaling.kind, RopeScaling::Kind::kFactors);
  EXPECT_THAT(config.rope_scaling.factors,
              ElementsAre(1.3f, 1.7f, 2.9f, 5.1f, 8.3f, 10.6f));
  EXPECT_FLOAT_EQ(
      config.rope_scaling.attention_factor,
      LoadModel(GoldenDir("phi3_long")).config.rope_scaling.attention_factor);
  EXPECT_EQ(config.max_position, 96);
  EXPECT_FALSE(config.sliding_window.has_value());
  // A type that only some files name.
  GgufWriter writer = LongGguf();
  writer.AddString("phi3.rope.scaling.type", "longrope");
  EXPECT_THAT(MustLoad(writer).rope_scaling.factors,
              ElementsAre(1.3f, 1.7f, 2.9f, 5.1f, 8.3f, 10.6f));
  // A context that is not stretched, and no magnitude.
  writer.AddUint32("phi3.rope.scaling.original_context_length", 96);
  writer.Remove("phi3.rope.scaling.attn_factor");
  config = MustLoad(writer);
  EXPECT_EQ(config.rope_scaling.factors[1], 1.7f / 2);
  EXPECT_EQ(config.rope_scaling.attention_factor, 1.0);
}

TEST(GgufPhi3Test, IdentitySeesTheMagnitude) {
  const auto identity = [](const GgufWriter& writer) {
    const LoadedModel loaded = Load(writer);
    EXPECT_TRUE(loaded.status.ok()) << loaded.status;
    return ModelIdentity(loaded.config, loaded.weights);
  };
  GgufWriter writer = LongGguf();
  const std::string first = identity(writer);
  EXPECT_EQ(identity(LongGguf()), first);
  writer.AddFloat("phi3.rope.scaling.attn_factor", 1.25f);
  EXPECT_NE(identity(writer), first);
}

TEST(GgufPhi3Test, WhatIsMissingIsNamed) {
  for (const char* const name :
       {"phi3.rope.scaling.original_context_length", "blk.1.ffn_up.weight",
        "blk.1.ffn_norm.weight"}) {
    GgufWriter writer = LongGguf();
    writer.Remove(name);
    const absl::Status status = Load(writer).status;
    EXPECT_EQ(status.code(), absl::StatusCode::kNotFound) << name;
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("m.gguf"), HasSubstr(name)));
  }
  GgufWriter writer = LongGguf();
  writer.AddUint32("phi3.rope.scaling.original_context_length", 96);
  writer.Remove("rope_factors_short.weight");
  EXPECT_THAT(std::string(Load(writer).status.message()),
              HasSubstr("\"rope_factors_short.weight\" is missing"));
}

TEST(GgufPhi3Test, WhatIsWrongIsNamed) {
  const auto error = [](const GgufWriter& writer) {
    return std::string(Load(writer).status.message());
  };
  GgufWriter writer = LongGguf();
  writer.AddTensor("rope_factors_long.weight", gguf::kF32, {5},
                   std::string(5 * sizeof(float), '\0'));
  EXPECT_THAT(error(writer),
              HasSubstr("\"rope_factors_long.weight\" has shape [5], it must "
                        "be [6] in F32"));
  writer.AddTensor("rope_factors_long.weight", gguf::kF32, {6},
                   std::string(6 * sizeof(float), '\0'));
  EXPECT_THAT(error(writer), HasSubstr("\"rope_factors_long.weight\" holds 0"));
  writer.Remove("rope_factors_long.weight");
  EXPECT_THAT(error(writer), HasSubstr("phi3.rope.scaling.attn_factor is there "
                                       "without a tensor"));
  writer = PhiGguf();
  writer.AddString("phi3.rope.scaling.type", "longrope");
  EXPECT_THAT(error(writer), HasSubstr("phi3.rope.scaling.type is \"longrope\" "
                                       "without a tensor"));
  writer = LongGguf();
  writer.AddFloat("phi3.rope.scaling.attn_factor", 0.0f);
  EXPECT_THAT(error(writer), HasSubstr("phi3.rope.scaling.attn_factor"));
  writer = LongGguf();
  writer.AddString("phi3.rope.scaling.type", "linear");
  writer.AddFloat("phi3.rope.scaling.factor", 2.0f);
  EXPECT_THAT(error(writer), HasSubstr("there beside another scaling"));
  writer = PhiGguf();
  writer.AddUint32("phi3.rope.dimension_count", 11);
  EXPECT_THAT(error(writer), HasSubstr("phi3.rope.dimension_count is 11"));
  writer = PhiGguf();
  writer.AddTensor("blk.0.attn_qkv.bias", gguf::kF32, {160},
                   std::string(160 * sizeof(float), '\0'));
  EXPECT_THAT(error(writer), HasSubstr("blk.0.attn_qkv.bias"));
  writer = PhiGguf();
  writer.AddTensor("blk.2.attn_qkv.weight", gguf::kBf16, {159, 48},
                   std::string(159 * 48 * 2, '\0'));
  EXPECT_THAT(error(writer), HasSubstr("\"blk.2.attn_qkv.weight\" has shape "
                                       "[159, 48], the metadata ask for "
                                       "[160, 48]"));
}

TEST(GgufPhi3Test, AnswersEndWithTheEndOfAMessage) {
  GgufWriter writer = PhiGguf();
  std::vector<std::string> tokens(138, "x");
  std::vector<int32_t> types(138, 1);
  tokens[5] = "<|end|>";
  tokens[6] = "<|endoftext|>";
  tokens[7] = "<|user|>";
  for (const int32_t id : {5, 6, 7}) types[id] = 3;
  writer.AddStrings("tokenizer.ggml.tokens", tokens);
  writer.AddInts("tokenizer.ggml.token_type", types);
  EXPECT_THAT(MustLoad(writer).eos_token_ids, ElementsAre(2, 5, 6));
}

// As llama.cpp has it: every fourth layer, which no file says.
TEST(GgufSmolLm3Test, LayersThatKnowNoPositions) {
  GgufWriter writer = test::GgufOfModelDir(GoldenDir("smollm3"));
  const ModelConfig config = MustLoad(writer);
  EXPECT_EQ(config.architecture, Architecture::kSmolLm3);
  EXPECT_TRUE(config.tie_word_embeddings);
  // It has two layers.
  EXPECT_TRUE(config.layer_turns.empty());
  writer.AddUint32("smollm3.block_count", 5);
  const ModelDir dir;
  dir.Write("m.gguf", writer.Finish());
  const auto five = LoadModelConfig(dir.File("m.gguf"));
  ASSERT_TRUE(five.ok()) << five.status();
  EXPECT_THAT(five->layer_turns, ElementsAre(true, true, true, false, true));
}

}  // namespace
}  // namespace baton::engine::gguf_phi3_test
