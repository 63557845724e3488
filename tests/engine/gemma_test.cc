// Gemma 3: what its config.json and its GGUF files say and leave out, and what
// its tensors are called.
#include "engine/gemma_config.h"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/text_model_json.h"
#include "engine/model_config.h"
#include "engine/norm_weights.h"
#include "engine/weights.h"
#include "tests/engine/model_dir.h"
#include "tests/support/gguf_writer.h"

namespace baton::engine::gemma_test {
namespace {

using nlohmann::json;
using test::GgufWriter;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

json GoldenConfig() {
  return json::parse(std::ifstream(GoldenDir("gemma3") + "/config.json"));
}

// What the file of the 4B model says, of texts and images.
json WithImages() {
  return {{"architectures", {"Gemma3ForConditionalGeneration"}},
          {"model_type", "gemma3"},
          {"eos_token_id", {1, 106}},
          {"image_token_index", 262144},
          {"text_config",
           {{"hidden_size", 2560},
            {"intermediate_size", 10240},
            {"model_type", "gemma3_text"},
            {"num_hidden_layers", 34},
            {"rope_scaling", {{"factor", 8.0}, {"rope_type", "linear"}}},
            {"sliding_window", 1024}}},
          {"vision_config", {{"hidden_size", 1152}}}};
}

TEST(GemmaConfigTest, ReadsModelsOfTexts) {
  const ModelConfig config = MustLoadConfig(GoldenConfig());
  EXPECT_EQ(config.architecture, Architecture::kGemma3);
  EXPECT_TRUE(config.post_norms && config.qk_norm);
  EXPECT_FALSE(config.qkv_bias || config.o_bias);
  EXPECT_EQ(config.norm_offset, 1.0);
  EXPECT_EQ(config.activation, Activation::kGeluTanh);
  EXPECT_EQ(config.query_scalar, 14);
  EXPECT_DOUBLE_EQ(config.ScoreScale(), 1 / std::sqrt(14.0));
  // The root of 72, 8.485, to eight bits.
  EXPECT_EQ(config.embedding_scale, 8.5);
  EXPECT_EQ(config.sliding_window, 9);
  EXPECT_THAT(config.layer_slides, ElementsAre(true, false));
  EXPECT_EQ(config.rope_theta, 1e4);
  EXPECT_EQ(config.sliding_rope_theta, 50.0);
  EXPECT_EQ(config.rope_scaling.kind, RopeScaling::Kind::kLinear);
}

TEST(GemmaConfigTest, OfImagesWhatIsOfTexts) {
  const ModelConfig config = MustLoadConfig(WithImages());
  EXPECT_EQ(config.architecture, Architecture::kGemma3);
  EXPECT_EQ(config.num_layers, 34);
  EXPECT_EQ(config.num_heads, 8);
  EXPECT_EQ(config.num_kv_heads, 4);
  EXPECT_EQ(config.head_dim, 256);
  EXPECT_EQ(config.vocab_size, 262208);
  EXPECT_EQ(config.max_position, 131072);
  EXPECT_EQ(config.query_scalar, 256);
  EXPECT_EQ(config.rms_norm_eps, 1e-6);
  EXPECT_TRUE(config.tie_word_embeddings);
  EXPECT_EQ(config.rope_theta, 1e6);
  EXPECT_EQ(config.sliding_rope_theta, 1e4);
  EXPECT_EQ(config.rope_scaling.factor, 8.0);
  EXPECT_EQ(config.bos_token_id, 2);
  EXPECT_THAT(config.eos_token_ids, ElementsAre(1, 106));
  // Every sixth sees everything.
  ASSERT_EQ(config.layer_slides.size(), 34u);
  for (int32_t i = 0; i < 34; ++i) {
    EXPECT_EQ(config.LayerSlides(i), i % 6 != 5) << i;
  }
  const ModelConfig fifth =
      MustLoadConfig(With(GoldenConfig(), {{"layer_types", "(erase)"},
                                           {"sliding_window_pattern", 1}}));
  EXPECT_FALSE(fifth.sliding_window.has_value());
}

TEST(GemmaConfigTest, NewerFilesSayRopeOfEachKindOfLayer) {
  json config = GoldenConfig();
  config.erase("rope_theta");
  config.erase("rope_scaling");
  config.erase("rope_local_base_freq");
  config["rope_parameters"] = {
      {"full_attention",
       {{"rope_type", "linear"}, {"factor", 4.0}, {"rope_theta", 1e4}}},
      {"sliding_attention", {{"rope_type", "default"}, {"rope_theta", 50.0}}}};
  const ModelConfig newer = MustLoadConfig(config);
  EXPECT_EQ(newer.rope_theta, 1e4);
  EXPECT_EQ(newer.sliding_rope_theta, 50.0);
  EXPECT_EQ(newer.rope_scaling.kind, RopeScaling::Kind::kLinear);
  EXPECT_EQ(newer.rope_scaling.factor, 4.0);

  const auto error = [&](const json& changes) {
    json broken = config;
    broken["rope_parameters"].merge_patch(changes);
    return LoadConfig(broken).status();
  };
  EXPECT_THAT(error({{"sliding_attention", {{"rope_type", "yarn"}}}}).message(),
              HasSubstr("rope_parameters.sliding_attention.rope_type is "
                        "\"yarn\"; Baton knows \"default\""));
  EXPECT_THAT(error({{"chunked_attention", {{"rope_theta", 1.0}}}}).message(),
              HasSubstr("rope_parameters.chunked_attention"));
  EXPECT_THAT(error({{"full_attention", {{"rope_theta", 0.5}}}}).message(),
              HasSubstr("rope_parameters.full_attention.rope_theta is 0.5"));
}

TEST(GemmaConfigTest, RefusesWhatItDoesNotKnow) {
  const auto error = [](const char* field, const json& value) {
    const auto config = LoadConfig(With(GoldenConfig(), {{field, value}}));
    EXPECT_EQ(config.status().code(), absl::StatusCode::kUnimplemented)
        << field << config.status();
    return std::string(config.status().message());
  };
  EXPECT_THAT(error("hidden_activation", "silu"),
              HasSubstr("config.json: hidden_activation is \"silu\"; Baton "
                        "knows \"gelu_pytorch_tanh\""));
  EXPECT_THAT(error("attn_logit_softcapping", 50.0),
              HasSubstr("attn_logit_softcapping is 50.0; Baton knows none"));
  EXPECT_THAT(error("final_logit_softcapping", 30.0),
              HasSubstr("final_logit_softcapping is 30.0"));
  EXPECT_THAT(error("use_bidirectional_attention", true),
              HasSubstr("use_bidirectional_attention is true"));
  EXPECT_THAT(error("architectures", {"Gemma2ForCausalLM"}),
              HasSubstr("Gemma2ForCausalLM"));
  const auto broken = LoadConfig(With(WithImages(), {{"text_config", "none"}}));
  EXPECT_THAT(broken.status().message(),
              HasSubstr("Gemma3ForConditionalGeneration"));
  const auto negative =
      LoadConfig(With(GoldenConfig(), {{"query_pre_attn_scalar", -1}}));
  EXPECT_THAT(negative.status().message(),
              HasSubstr("query_pre_attn_scalar is -1"));
}

TEST(TextModelJsonTest, LeavesOthersAsTheyAre) {
  const json llama = LlamaConfigJson();
  EXPECT_EQ(TextModelJson(llama), llama);
  for (const json& odd : {json(nullptr), json(3), json::array({1}),
                          json{{"architectures", "Gemma3ForCausalLM"}},
                          json{{"architectures", {1}}}}) {
    EXPECT_EQ(TextModelJson(odd), odd);
  }
  // What is said of the whole goes before, and what is null stays so.
  json config = WithImages();
  config["tie_word_embeddings"] = false;
  config["text_config"]["eos_token_id"] = 1;
  config["text_config"]["head_dim"] = nullptr;
  const json text = TextModelJson(config);
  EXPECT_EQ(text.at("eos_token_id"), json({1, 106}));
  EXPECT_EQ(text.at("tie_word_embeddings"), false);
  EXPECT_TRUE(text.at("head_dim").is_null());
}

// The golden model's tensors under another name than "model.".
std::string Renamed(const std::string& root) {
  std::ifstream in(GoldenDir("gemma3") + "/model.safetensors",
                   std::ios::binary);
  std::stringstream all;
  all << in.rdbuf();
  const std::string file = std::move(all).str();
  uint64_t size = 0;
  std::memcpy(&size, file.data(), sizeof(size));
  const json header = json::parse(file.substr(sizeof(size), size));
  json renamed = {
      {"vision_tower.embeddings.weight",
       {{"dtype", "F32"}, {"shape", {0}}, {"data_offsets", {0, 0}}}}};
  for (const auto& [name, tensor] : header.items()) {
    if (name == "__metadata__") continue;
    renamed[root + name.substr(std::string("model.").size())] = tensor;
  }
  return RawSafetensors(renamed.dump(), file.substr(sizeof(size) + size));
}

TEST(GemmaWeightsTest, OfImagesThoseOfTexts) {
  const LoadedModel plain = LoadModel(GoldenDir("gemma3"));
  ASSERT_TRUE(plain.status.ok()) << plain.status;
  for (const char* const root :
       {"language_model.model.", "model.language_model."}) {
    json config = WithImages();
    config["text_config"] = GoldenConfig();
    const ModelDir dir;
    dir.Write("config.json", config.dump());
    dir.Write("model.safetensors", Renamed(root));
    const LoadedModel wrapped = LoadModel(dir.path());
    ASSERT_TRUE(wrapped.status.ok()) << wrapped.status;
    const auto ours = wrapped.weights.AllTensors();
    const auto theirs = plain.weights.AllTensors();
    ASSERT_EQ(ours.size(), theirs.size());
    for (size_t i = 0; i < ours.size(); ++i) {
      EXPECT_EQ(ours[i]->bytes, theirs[i]->bytes) << ours[i]->name;
    }
  }
  // Four norms and two of heads in each of two layers, and the last one.
  EXPECT_EQ(plain.weights.AllTensors().size(), 2u * (4 + 2 + 7) + 1 + 1);
}

TEST(GemmaWeightsTest, NormsAreMoreThanTheFileHas) {
  const LoadedModel model = LoadModel(GoldenDir("gemma3"));
  ASSERT_TRUE(model.status.ok()) << model.status;
  ModelConfig as_stored = model.config;
  as_stored.norm_offset = 0;
  const TensorView& norm = model.weights.final_norm;
  const std::vector<float> stored = NormWeights(as_stored, norm);
  const std::vector<float> used = NormWeights(model.config, norm);
  ASSERT_EQ(stored.size(), 72u);
  for (size_t i = 0; i < stored.size(); ++i) {
    EXPECT_EQ(used[i], stored[i] + 1.0f);
  }
}

GgufWriter GemmaGguf() { return test::GgufOfModelDir(GoldenDir("gemma3")); }

absl::StatusOr<ModelConfig> LoadGguf(const GgufWriter& writer) {
  const ModelDir dir;
  dir.Write("m.gguf", writer.Finish());
  const LoadedModel loaded = LoadModel(dir.File("m.gguf"));
  if (!loaded.status.ok()) return loaded.status;
  return loaded.config;
}

TEST(GgufGemmaTest, IsTheDirectory) {
  const auto file = LoadGguf(GemmaGguf());
  ASSERT_TRUE(file.ok()) << file.status();
  const ModelConfig dir = MustLoadConfig(GoldenConfig());
  EXPECT_EQ(file->architecture, Architecture::kGemma3);
  EXPECT_TRUE(file->post_norms && file->qk_norm);
  EXPECT_EQ(file->norm_offset, 0.0);
  EXPECT_EQ(file->activation, Activation::kGeluTanh);
  EXPECT_EQ(file->embedding_scale, dir.embedding_scale);
  EXPECT_EQ(file->sliding_window, dir.sliding_window);
  EXPECT_EQ(file->layer_slides, dir.layer_slides);
  EXPECT_EQ(file->sliding_rope_theta, dir.sliding_rope_theta);
  EXPECT_EQ(file->rope_scaling.factor, dir.rope_scaling.factor);
  EXPECT_TRUE(file->tie_word_embeddings);
  // Which it does not say.
  EXPECT_EQ(file->query_scalar, file->head_dim);
}

TEST(GgufGemmaTest, WhatFilesLeaveOut) {
  GgufWriter writer = GemmaGguf();
  writer.AddUint32("gemma3.attention.sliding_window", 0);
  auto config = LoadGguf(writer);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_FALSE(config->sliding_window.has_value());
  EXPECT_TRUE(config->layer_slides.empty());
  // All of two layers slide where every sixth does not.
  writer = GemmaGguf();
  writer.AddUint32("gemma3.attention.sliding_window_pattern", 6);
  config = LoadGguf(writer);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->sliding_window, 9);
  EXPECT_TRUE(config->LayerSlides(0) && config->LayerSlides(1));
}

TEST(GgufGemmaTest, ScoresOf27B) {
  GgufWriter writer = GemmaGguf();
  writer.AddUint32("gemma3.block_count", 62);
  const ModelDir dir;
  dir.Write("m.gguf", writer.Finish());
  const auto config = LoadModelConfig(dir.File("m.gguf"));
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->query_scalar, 72 / 4);
}

TEST(GgufGemmaTest, RefusesWhatItDoesNotKnow) {
  GgufWriter writer = GemmaGguf();
  writer.AddFloat("gemma3.final_logit_softcapping", 30.0f);
  auto config = LoadGguf(writer);
  EXPECT_EQ(config.status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(config.status().message(),
              AllOf(HasSubstr("m.gguf: "),
                    HasSubstr("gemma3.final_logit_softcapping is 30")));
  writer = GemmaGguf();
  writer.AddString("general.architecture", "gemma2");
  config = LoadGguf(writer);
  EXPECT_THAT(config.status().message(), HasSubstr("smollm3, gemma3, "));
}

TEST(GgufGemmaTest, AnswersEndWithTheEndOfATurn) {
  GgufWriter writer = GemmaGguf();
  std::vector<std::string> tokens(148, "x");
  std::vector<int32_t> types(148, 1);
  tokens[6] = "<end_of_turn>";
  tokens[7] = "<start_of_turn>";
  for (const int32_t id : {6, 7}) types[id] = 3;
  writer.AddStrings("tokenizer.ggml.tokens", tokens);
  writer.AddInts("tokenizer.ggml.token_type", types);
  const auto config = LoadGguf(writer);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_THAT(config->eos_token_ids, ElementsAre(2, 6));
}

}  // namespace
}  // namespace baton::engine::gemma_test
