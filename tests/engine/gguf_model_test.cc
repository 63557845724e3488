// Configs and weights from GGUF files, right ones and broken ones.
#include <cmath>
#include <functional>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "common/gguf/gguf_tensor_type.h"
#include "common/log.h"
#include "engine/model_config.h"
#include "engine/model_identity.h"
#include "engine/weights.h"
#include "tests/engine/model_dir.h"
#include "tests/engine/mutation.h"
#include "tests/support/gguf_writer.h"

namespace baton::engine {
namespace {

using nlohmann::json;
using test::GgufWriter;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Optional;

// The model of LlamaTensors() as a GGUF file.
GgufWriter LlamaGguf(const json& config = LlamaConfigJson()) {
  ModelDir dir;
  dir.Write("config.json", config.dump());
  dir.Write("model.safetensors", Safetensors(LlamaTensors()));
  return test::GgufOfModelDir(dir.path());
}

LoadedModel LoadBytes(const ModelDir& dir, const std::string& bytes) {
  dir.Write("m.gguf", bytes);
  return LoadModel(dir.File("m.gguf"));
}

LoadedModel Load(const GgufWriter& writer) {
  const ModelDir dir;
  return LoadBytes(dir, writer.Finish());
}

TEST(GgufModelTest, ReadsConfigAndWeights) {
  const LoadedModel loaded = Load(LlamaGguf());
  ASSERT_TRUE(loaded.status.ok()) << loaded.status;
  ModelDir dir;
  dir.Write("config.json", LlamaConfigJson().dump());
  dir.Write("model.safetensors", Safetensors(LlamaTensors()));
  const ModelConfig expected = *LoadModelConfig(dir.path());
  const ModelConfig& config = loaded.config;
  EXPECT_EQ(config.architecture, Architecture::kLlama);
  EXPECT_EQ(config.hidden_size, expected.hidden_size);
  EXPECT_EQ(config.num_layers, expected.num_layers);
  EXPECT_EQ(config.num_heads, expected.num_heads);
  EXPECT_EQ(config.num_kv_heads, expected.num_kv_heads);
  EXPECT_EQ(config.head_dim, expected.head_dim);
  EXPECT_EQ(config.intermediate_size, expected.intermediate_size);
  EXPECT_EQ(config.vocab_size, expected.vocab_size);
  EXPECT_EQ(config.max_position, expected.max_position);
  EXPECT_EQ(static_cast<float>(config.rms_norm_eps),
            static_cast<float>(expected.rms_norm_eps));
  EXPECT_EQ(config.rope_theta, expected.rope_theta);
  EXPECT_FALSE(config.tie_word_embeddings);

  const ModelWeights original = *LoadModelWeights(dir.path(), expected);
  const auto matrices = loaded.weights.AllMatrices();
  const auto originals = original.AllMatrices();
  ASSERT_EQ(matrices.size(), originals.size());
  for (size_t i = 0; i < matrices.size(); ++i) {
    EXPECT_EQ(AllRows(*matrices[i]), AllRows(*originals[i]))
        << matrices[i]->name;
    ReleasePages(*matrices[i]);
    EXPECT_EQ(AllRows(*matrices[i]), AllRows(*originals[i]))
        << matrices[i]->name;
  }
  EXPECT_EQ(loaded.weights.AllTensors().size(), original.AllTensors().size());
}

TEST(GgufModelTest, IdentityTellsFilesApart) {
  const auto identity = [](const GgufWriter& writer) {
    const LoadedModel loaded = Load(writer);
    CHECK(loaded.status.ok()) << loaded.status;
    return ModelIdentity(loaded.config, loaded.weights);
  };
  GgufWriter writer = LlamaGguf();
  const std::string first = identity(writer);
  EXPECT_EQ(identity(LlamaGguf()), first);
  writer.AddString("general.name", "another name, the same model");
  EXPECT_EQ(identity(writer), first);
  std::string factors;
  for (int i = 0; i < 2; ++i) factors += test::NumberBytes(1.0f + i);
  writer.AddTensor("rope_freqs.weight", gguf::kF32, {2}, factors);
  EXPECT_NE(identity(writer), first);
}

TEST(GgufModelTest, SpecialTokens) {
  GgufWriter writer = LlamaGguf();
  writer.AddUint32("tokenizer.ggml.bos_token_id", 1);
  writer.AddUint32("tokenizer.ggml.eos_token_id", 2);
  writer.AddUint32("tokenizer.ggml.eot_token_id", 4);
  writer.AddUint32("tokenizer.ggml.eom_token_id", 7);
  writer.AddStrings("tokenizer.ggml.tokens", {"a", "b", "c", "<|im_end|>", "d",
                                              "<|eot_id|>", "<|eom_id|>", "e"});
  writer.AddInts("tokenizer.ggml.token_type", {1, 3, 3, 3, 3, 1, 3, 3});
  const LoadedModel loaded = Load(writer);
  ASSERT_TRUE(loaded.status.ok()) << loaded.status;
  EXPECT_THAT(loaded.config.bos_token_id, Optional(1));
  // "<|eot_id|>" is no control token here.
  EXPECT_THAT(loaded.config.eos_token_ids, ElementsAre(2, 4, 7, 3, 6));
  writer.AddUint32("tokenizer.ggml.eos_token_id", 32);
  EXPECT_THAT(Load(writer).status.message(),
              HasSubstr("tokenizer.ggml.eos_token_id is 32"));
}

TEST(GgufModelTest, RopeScaling) {
  GgufWriter writer = LlamaGguf();
  writer.AddString("llama.rope.scaling.type", "linear");
  writer.AddFloat("llama.rope.scaling.factor", 4.0f);
  LoadedModel loaded = Load(writer);
  ASSERT_TRUE(loaded.status.ok()) << loaded.status;
  EXPECT_EQ(loaded.config.rope_scaling.kind, RopeScaling::Kind::kLinear);
  EXPECT_EQ(loaded.config.rope_scaling.factor, 4.0);
  std::string factors;
  for (int i = 0; i < 2; ++i) factors += test::NumberBytes(1.0f + i);
  writer.AddTensor("rope_freqs.weight", gguf::kF32, {2}, factors);
  loaded = Load(writer);
  ASSERT_TRUE(loaded.status.ok()) << loaded.status;
  EXPECT_EQ(loaded.config.rope_scaling.kind, RopeScaling::Kind::kFactors);
  EXPECT_THAT(loaded.config.rope_scaling.factors, ElementsAre(4, 8));
  for (const float bad : {0.0f, -1.0f, std::nanf(""), INFINITY}) {
    factors.replace(4, 4, test::NumberBytes(bad));
    writer.AddTensor("rope_freqs.weight", gguf::kF32, {2}, factors);
    EXPECT_THAT(Load(writer).status.message(), HasSubstr("rope_freqs.weight"));
  }
  writer.AddTensor("rope_freqs.weight", gguf::kF32, {1}, "1234");
  EXPECT_THAT(Load(writer).status.message(), HasSubstr("rope_freqs.weight"));
  writer.Remove("rope_freqs.weight");
  writer.AddString("llama.rope.scaling.type", "longrope");
  EXPECT_EQ(Load(writer).status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(Load(writer).status.message(), HasSubstr("longrope"));
}

TEST(GgufModelTest, Yarn) {
  const std::string rope = "llama.rope.scaling.";
  const auto yarn = [&] {
    GgufWriter writer = LlamaGguf();
    writer.AddString(rope + "type", "yarn");
    writer.AddFloat(rope + "factor", 4.0f);
    return writer;
  };
  GgufWriter writer = yarn();
  const int32_t plain = Load(LlamaGguf()).config.max_position;
  LoadedModel loaded = Load(writer);
  ASSERT_TRUE(loaded.status.ok()) << loaded.status;
  EXPECT_EQ(loaded.config.rope_scaling.kind, RopeScaling::Kind::kYarn);
  EXPECT_EQ(loaded.config.rope_scaling.original_max_position, plain);
  EXPECT_EQ(loaded.config.rope_scaling.beta_fast, 32.0);
  EXPECT_NEAR(loaded.config.rope_scaling.attention_factor, 1.138629436, 1e-9);
  EXPECT_EQ(loaded.config.max_position, 4 * plain);
  writer.AddUint32(rope + "original_context_length", 2 * plain);
  writer.AddFloat(rope + "yarn_beta_fast", 8.0f);
  writer.AddFloat(rope + "yarn_beta_slow", 2.0f);
  loaded = Load(writer);
  ASSERT_TRUE(loaded.status.ok()) << loaded.status;
  EXPECT_EQ(loaded.config.rope_scaling.beta_fast, 8.0);
  EXPECT_EQ(loaded.config.rope_scaling.beta_slow, 2.0);
  EXPECT_EQ(loaded.config.max_position, 8 * plain);

  writer.AddUint32(rope + "original_context_length", 0);
  EXPECT_THAT(Load(writer).status.message(),
              HasSubstr(rope + "original_context_length is 0"));
  writer.AddUint32(rope + "original_context_length", 2 * plain);
  writer.AddFloat(rope + "yarn_beta_slow", 8.0f);
  EXPECT_EQ(Load(writer).status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(Load(writer).status.message(),
              HasSubstr(rope + "yarn_beta_fast"));
  for (const char* const key : {"attn_factor", "yarn_ext_factor",
                                "yarn_attn_factor", "yarn_log_multiplier"}) {
    writer = yarn();
    writer.AddFloat(rope + key, 1.0f);
    EXPECT_EQ(Load(writer).status.code(), absl::StatusCode::kUnimplemented);
    EXPECT_THAT(Load(writer).status.message(), HasSubstr(rope + key));
  }
  writer = yarn();
  writer.AddFloat(rope + "factor", 0.5f);
  EXPECT_THAT(Load(writer).status.message(), HasSubstr(rope + "factor is 0.5"));
  writer = yarn();
  writer.AddFloat("llama.rope.freq_base", 1.0f);
  EXPECT_THAT(Load(writer).status.message(),
              HasSubstr("llama.rope.freq_base is 1"));
  writer = yarn();
  writer.AddTensor("rope_freqs.weight", gguf::kF32, {2},
                   test::NumberBytes(1.0f) + test::NumberBytes(2.0f));
  EXPECT_THAT(Load(writer).status.message(), HasSubstr("rope_freqs.weight"));
}

TEST(GgufModelTest, BrokenMetadataNameFileAndKey) {
  using Change = std::function<void(GgufWriter&)>;
  const auto set = [](const char* key, uint32_t value) {
    return [=](GgufWriter& w) { w.AddUint32(key, value); };
  };
  const std::vector<std::pair<std::string, Change>> broken = {
      {"llama.embedding_length", set("llama.embedding_length", 0)},
      {"llama.block_count", set("llama.block_count", 1u << 30)},
      {"llama.context_length",
       [](GgufWriter& w) { w.AddString("llama.context_length", "long"); }},
      {"llama.attention.head_count_kv",
       set("llama.attention.head_count_kv", 3)},
      {"llama.attention.key_length", set("llama.attention.key_length", 7)},
      // Without key_length, the heads share the embedding.
      {"llama.embedding_length is 16",
       [](GgufWriter& w) {
         w.Remove("llama.attention.key_length");
         w.AddUint32("llama.attention.head_count", 6);
       }},
      {"llama.attention.head_count asks for a key_length of 1",
       [](GgufWriter& w) {
         w.Remove("llama.attention.key_length");
         w.AddUint32("llama.attention.head_count", 16);
       }},
      {"llama.attention.layer_norm_rms_epsilon",
       [](GgufWriter& w) {
         w.AddFloat("llama.attention.layer_norm_rms_epsilon", -1.0f);
       }},
      {"llama.rope.freq_base",
       [](GgufWriter& w) { w.AddFloat("llama.rope.freq_base", 0.0f); }},
      {"token_embd.weight",
       [](GgufWriter& w) {
         w.AddTensor("token_embd.weight", gguf::kF32, {4}, "aaaabbbbccccdddd");
       }},
      {"general.architecture", set("general.architecture", 3)},
  };
  for (const auto& [name, change] : broken) {
    GgufWriter writer = LlamaGguf();
    change(writer);
    const absl::Status status = Load(writer).status;
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << name;
    EXPECT_THAT(status.message(), AllOf(HasSubstr("m.gguf"), HasSubstr(name)));
  }
  for (const char* const name :
       {"general.architecture", "llama.embedding_length", "llama.block_count",
        "llama.feed_forward_length", "llama.context_length",
        "llama.attention.head_count", "llama.attention.layer_norm_rms_epsilon",
        "token_embd.weight", "output_norm.weight", "blk.1.attn_k.weight",
        "blk.0.ffn_norm.weight"}) {
    GgufWriter writer = LlamaGguf();
    writer.Remove(name);
    const absl::Status status = Load(writer).status;
    EXPECT_EQ(status.code(), absl::StatusCode::kNotFound) << name;
    EXPECT_THAT(status.message(), AllOf(HasSubstr("m.gguf"), HasSubstr(name)));
  }
  const std::vector<std::pair<std::string, Change>> unknown = {
      {"general.architecture",
       [](GgufWriter& w) { w.AddString("general.architecture", "gemma"); }},
      {"llama.expert_shared_count", set("llama.expert_shared_count", 1)},
      {"llama.attention.sliding_window",
       set("llama.attention.sliding_window", 16)},
      {"llama.rope.dimension_count", set("llama.rope.dimension_count", 2)},
      {"llama.attention.value_length", set("llama.attention.value_length", 16)},
      {"blk.1.ffn_up.weight\" is I16",
       [](GgufWriter& w) {
         w.AddTensor("blk.1.ffn_up.weight", 25, {24, 16},
                     std::string(24 * 16 * 2, '\0'));
       }},
      {"output_norm.weight\" is F64",
       [](GgufWriter& w) {
         w.AddTensor("output_norm.weight", 28, {16}, std::string(128, '\0'));
       }},
  };
  for (const auto& [name, change] : unknown) {
    GgufWriter writer = LlamaGguf();
    change(writer);
    const absl::Status status = Load(writer).status;
    EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented) << name;
    EXPECT_THAT(status.message(), AllOf(HasSubstr("m.gguf"), HasSubstr(name)));
  }
}

// All of it is read from real ones in tests/golden.
TEST(GgufModelTest, WhatIsWrongWithExpertsIsNamed) {
  GgufWriter writer = LlamaGguf();
  const auto add = [&](const std::string& name, std::vector<int64_t> shape) {
    int64_t bytes = sizeof(float);
    for (const int64_t size : shape) bytes *= size;
    writer.AddTensor("blk.0." + name, gguf::kF32, shape,
                     std::string(bytes, '\0'));
  };
  const auto expect = [&](absl::StatusCode code, const char* message) {
    const LoadedModel loaded = Load(writer);
    EXPECT_EQ(loaded.status.code(), code) << message;
    EXPECT_THAT(loaded.status.message(),
                AllOf(HasSubstr("m.gguf"), HasSubstr(message)));
  };
  constexpr auto kMissing = absl::StatusCode::kNotFound;
  constexpr auto kWrong = absl::StatusCode::kInvalidArgument;
  writer.AddUint32("llama.expert_count", 4);
  expect(kMissing, "llama.expert_used_count");
  writer.AddUint32("llama.expert_used_count", 5);
  expect(kWrong, "llama.expert_used_count");
  writer.AddUint32("llama.expert_used_count", 2);
  expect(kMissing, "\"blk.0.ffn_gate_inp.weight\" is missing");
  add("ffn_gate_inp.weight", {4, 16});
  add("ffn_gate_exps.weight", {3, 24, 16});
  expect(kWrong,
         "\"blk.0.ffn_gate_exps.weight\" has shape [3, 24, 16], the metadata "
         "ask for [4, 24, 16]");
  add("ffn_gate_exps.weight", {4, 24, 16});
  add("ffn_up_exps.weight", {4, 24, 16});
  expect(kMissing, "\"blk.0.ffn_down_exps.weight\" is missing");
  add("ffn_down_exps.weight", {4, 16, 24});
  expect(kMissing, "\"blk.1.ffn_gate_inp.weight\" is missing");
  writer.AddUint32("llama.expert_count", 2000);
  expect(kWrong, "llama.expert_count");
}

// Of GLM's mixtures, what others do not have.
TEST(GgufModelTest, WhatIsWrongWithSharedExpertsIsNamed) {
  const auto glm = [](absl::string_view name, uint32_t value) {
    GgufWriter writer = test::GgufOfModelDir(GoldenDir("glm4_moe"));
    if (!name.empty()) writer.AddUint32(absl::StrCat("glm4moe.", name), value);
    return writer;
  };
  EXPECT_TRUE(Load(glm("", 0)).status.ok()) << Load(glm("", 0)).status;
  // What llama.cpp takes for sigmoid, too.
  EXPECT_TRUE(Load(glm("expert_gating_func", 0)).status.ok());
  constexpr auto kWrong = absl::StatusCode::kInvalidArgument;
  constexpr auto kUnknown = absl::StatusCode::kUnimplemented;
  constexpr auto kMissing = absl::StatusCode::kNotFound;
  const std::tuple<const char*, uint32_t, absl::StatusCode, const char*>
      cases[] = {
          {"expert_gating_func", 1, kUnknown, "expert_gating_func is 1"},
          {"expert_shared_count", 2, kWrong,
           "ffn_gate_shexp.weight\" has shape"},
          {"expert_group_count", 4, kWrong, "expert_group_count is 4"},
          {"rope.dimension_sections", 8, kUnknown, "rope.dimension_sections"},
          {"rope.dimension_count", 7, kWrong, "rope.dimension_count is 7"},
          {"rope.dimension_count", 24, kUnknown, "rope.dimension_count is 24"},
          {"nextn_predict_layers", 4, kWrong, "nextn_predict_layers is 4"},
          // One more than there are.
          {"nextn_predict_layers", 0, kMissing, "blk.3."},
          {"leading_dense_block_count", 3, kWrong,
           "leading_dense_block_count is 3"}};
  for (const auto& [name, value, code, message] : cases) {
    const absl::Status status = Load(glm(name, value)).status;
    EXPECT_EQ(status.code(), code) << name;
    EXPECT_THAT(status.message(),
                AllOf(HasSubstr("m.gguf"), HasSubstr(message)));
  }
  for (const char* const name :
       {"blk.1.exp_probs_b.bias", "blk.2.ffn_up_shexp.weight",
        "blk.0.post_attention_norm.weight"}) {
    GgufWriter writer = glm("", 0);
    writer.Remove(name);
    EXPECT_EQ(Load(writer).status.code(), kMissing) << name;
    EXPECT_THAT(Load(writer).status.message(), HasSubstr(name));
  }
}

TEST(GgufModelTest, WrongShapesNameTheTensor) {
  GgufWriter writer = LlamaGguf();
  writer.AddTensor("blk.0.ffn_down.weight", gguf::kF32, {24, 16},
                   std::string(24 * 16 * 4, '\0'));
  const absl::Status status = Load(writer).status;
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(),
              AllOf(HasSubstr("blk.0.ffn_down.weight"), HasSubstr("[24, 16]"),
                    HasSubstr("[16, 24]")));
}

TEST(GgufModelTest, AnOutputMatrixIsOptional) {
  GgufWriter writer = LlamaGguf();
  writer.Remove("output.weight");
  const LoadedModel loaded = Load(writer);
  ASSERT_TRUE(loaded.status.ok()) << loaded.status;
  EXPECT_TRUE(loaded.config.tie_word_embeddings);
  EXPECT_FALSE(loaded.weights.lm_head.has_value());
}

TEST(GgufModelTest, BlockFormatsAreTaken) {
  // Heads of 32, one layer, rows of 256 weights.
  GgufWriter writer;
  const auto add = [&](const char* name, uint32_t type, int64_t rows) {
    const auto* info = gguf::FindTensorType(type);
    writer.AddTensor(
        name, type, {rows, 256},
        std::string(rows * 256 / info->block_elements * info->block_bytes,
                    '\x11'));
  };
  writer.AddString("general.architecture", "llama");
  writer.AddUint32("llama.context_length", 64);
  writer.AddUint32("llama.embedding_length", 256);
  writer.AddUint32("llama.block_count", 1);
  writer.AddUint32("llama.feed_forward_length", 256);
  writer.AddUint32("llama.attention.head_count", 8);
  writer.AddUint32("llama.attention.head_count_kv", 4);
  writer.AddFloat("llama.attention.layer_norm_rms_epsilon", 1e-5f);
  add("token_embd.weight", gguf::kQ6K, 40);
  add("blk.0.attn_q.weight", gguf::kQ4K, 256);
  add("blk.0.attn_k.weight", gguf::kQ4_0, 128);
  add("blk.0.attn_v.weight", gguf::kQ8_0, 128);
  add("blk.0.attn_output.weight", gguf::kF16, 256);
  add("blk.0.ffn_gate.weight", gguf::kQ5_0, 256);
  add("blk.0.ffn_up.weight", gguf::kQ5K, 256);
  add("blk.0.ffn_down.weight", gguf::kQ6K, 256);
  for (const char* const name :
       {"blk.0.attn_norm.weight", "blk.0.ffn_norm.weight",
        "output_norm.weight"}) {
    writer.AddTensor(name, gguf::kF32, {256}, std::string(1024, '\0'));
  }
  const LoadedModel loaded = Load(writer);
  ASSERT_TRUE(loaded.status.ok()) << loaded.status;
  const LayerWeights& layer = loaded.weights.layers[0];
  EXPECT_EQ(loaded.config.head_dim, 32);
  EXPECT_EQ(loaded.weights.embedding.encoding, WeightEncoding::kGgufQ6K);
  EXPECT_EQ(layer.q_proj.encoding, WeightEncoding::kGgufQ4K);
  EXPECT_EQ(layer.q_proj.interleaved_head, 32);
  EXPECT_EQ(layer.k_proj.encoding, WeightEncoding::kGgufQ4_0);
  EXPECT_EQ(layer.v_proj.encoding, WeightEncoding::kGgufQ8_0);
  EXPECT_EQ(layer.v_proj.interleaved_head, 0);
  EXPECT_EQ(layer.o_proj.encoding, WeightEncoding::kPlain);
  EXPECT_EQ(layer.gate_proj.encoding, WeightEncoding::kGgufQ5_0);
  EXPECT_EQ(layer.up_proj.encoding, WeightEncoding::kGgufQ5K);
  for (const WeightMatrix* matrix : loaded.weights.AllMatrices()) {
    EXPECT_EQ(AllRows(*matrix).size(), matrix->rows * 256u);
  }
  add("blk.0.ffn_up.weight", 11, 256);
  EXPECT_THAT(Load(writer).status.message(),
              HasSubstr("\"blk.0.ffn_up.weight\" is Q3_K"));
}

TEST(GgufModelTest, SurvivesDamage) {
  std::mt19937 random(1);
  const ModelDir dir;
  for (const std::string& content :
       {LlamaGguf().Finish(),
        test::GgufOfModelDir(GoldenDir("phi3_long")).Finish(),
        test::GgufOfModelDir(GoldenDir("deepseek_v2")).Finish()}) {
    // The head of the file; the rest are weights.
    const size_t head = content.find("token_embd.weight");
    for (int i = 0; i < 500; ++i) {
      const std::string damaged =
          Mutate(content.substr(0, head), random) + content.substr(head);
      const LoadedModel loaded = LoadBytes(dir, damaged);
      if (!loaded.status.ok()) {
        EXPECT_FALSE(loaded.status.message().empty());
        continue;
      }
      for (const WeightMatrix* matrix : loaded.weights.AllMatrices()) {
        AllRows(*matrix);
      }
    }
  }
}

}  // namespace
}  // namespace baton::engine
