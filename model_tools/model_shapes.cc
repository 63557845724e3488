#include "model_tools/model_shapes.h"

#include <algorithm>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "engine/gemma_config.h"
#include "engine/latent_config.h"
#include "engine/rope_config.h"
#include "model_tools/synth_tokenizer.h"

namespace baton::model_tools {
namespace {

using engine::Architecture;
using engine::ModelConfig;
using engine::RopeScaling;

// What the models differ in.
struct Geometry {
  Architecture architecture;
  int32_t layers, hidden, heads, kv_heads, head_dim, intermediate, vocab;
  int32_t max_position;
  double rms_norm_eps, rope_theta;
  bool tied;
};

ModelShape MakeShape(const char* name, const Geometry& g) {
  ModelConfig config;
  config.architecture = g.architecture;
  config.num_layers = g.layers;
  config.hidden_size = g.hidden;
  config.num_heads = g.heads;
  config.num_kv_heads = g.kv_heads;
  config.head_dim = g.head_dim;
  config.intermediate_size = g.intermediate;
  config.vocab_size = g.vocab;
  config.max_position = g.max_position;
  config.rms_norm_eps = g.rms_norm_eps;
  config.rope_theta = g.rope_theta;
  config.tie_word_embeddings = g.tied;
  config.qkv_bias = g.architecture == Architecture::kQwen2;
  config.qk_norm = g.architecture == Architecture::kQwen3 ||
                   g.architecture == Architecture::kQwen3Moe;
  config.bos_token_id = kSynthBos;
  config.eos_token_ids = {kSynthEos};
  return {name, config};
}

// All layers have experts, of `g.intermediate`.
ModelShape MakeExpertsShape(const char* name, const Geometry& g, int32_t count,
                            int32_t per_token) {
  ModelShape shape = MakeShape(name, g);
  ModelConfig& config = shape.config;
  config.experts.count = count;
  config.experts.per_token = per_token;
  config.experts.intermediate_size = config.intermediate_size;
  config.intermediate_size = 0;
  return shape;
}

// GLM's: dense layers first, an expert that all tokens share, and half of each
// head turned.
struct GlmGeometry {
  int32_t dense_layers, count, per_token, intermediate;
  double scale;
  bool qk_norm;
};
ModelShape MakeGlmShape(const char* name, const Geometry& g,
                        const GlmGeometry& glm) {
  ModelShape shape = MakeShape(name, g);
  ModelConfig& config = shape.config;
  config.experts.count = glm.count;
  config.experts.per_token = glm.per_token;
  config.experts.shared = 1;
  config.experts.intermediate_size = glm.intermediate;
  config.experts.score = engine::ExpertsConfig::Score::kSigmoid;
  config.experts.choice_bias = true;
  config.experts.scale = glm.scale;
  config.layer_has_experts.assign(config.num_layers, true);
  for (int32_t i = 0; i < glm.dense_layers; ++i) {
    config.layer_has_experts[i] = false;
  }
  config.qkv_bias = true;
  config.qk_norm = glm.qk_norm;
  config.rotary_dim = config.head_dim / 2;
  return shape;
}

// Latent attention, and experts in groups.
struct DeepseekGeometry {
  engine::LatentConfig latent;
  int32_t dense_layers, count, per_token, shared, intermediate;
  int32_t groups, chosen_groups;
  double scale;
  // Of YaRN, from 4,096 positions: by how much, and the weight of what scores
  // are multiplied by; 0: not stretched.
  double factor, score_weight;
};
ModelShape MakeDeepseekShape(const char* name, const Geometry& g,
                             const DeepseekGeometry& deepseek) {
  ModelShape shape = MakeShape(name, g);
  ModelConfig& config = shape.config;
  config.latent = deepseek.latent;
  engine::SetLatentHeads(config);
  config.rope_interleaved = true;
  engine::ExpertsConfig& experts = config.experts;
  experts.count = deepseek.count;
  experts.per_token = deepseek.per_token;
  experts.shared = deepseek.shared;
  experts.intermediate_size = deepseek.intermediate;
  experts.groups = deepseek.groups;
  experts.chosen_groups = deepseek.chosen_groups;
  experts.scale = deepseek.scale;
  experts.normalized = g.architecture != Architecture::kDeepseekV2;
  if (experts.normalized) {
    experts.score = engine::ExpertsConfig::Score::kSigmoid;
    experts.choice_bias = true;
  }
  config.layer_has_experts.assign(config.num_layers, true);
  std::fill_n(config.layer_has_experts.begin(), deepseek.dense_layers, false);
  if (deepseek.factor > 1) {
    RopeScaling& scaling = config.rope_scaling;
    scaling.kind = RopeScaling::Kind::kYarn;
    scaling.factor = deepseek.factor;
    scaling.original_max_position = 4096;
    scaling.score_weight = deepseek.score_weight;
  }
  engine::SetLatentScores(config);
  return shape;
}

// Every other layer slides, each query head has a sink, and experts have biases
// and a limit.
ModelShape MakeGptOssShape(const char* name, const Geometry& g, int32_t count) {
  ModelShape shape = MakeExpertsShape(name, g, count, /*per_token=*/4);
  ModelConfig& config = shape.config;
  config.experts.router_bias = true;
  config.experts.bias = true;
  config.experts.swiglu_limit = 7.0;
  config.qkv_bias = true;
  config.o_bias = true;
  config.attention_sinks = true;
  config.sliding_window = 128;
  config.layer_slides = engine::LayersInTurns(config.num_layers);
  RopeScaling& scaling = config.rope_scaling;
  scaling.kind = RopeScaling::Kind::kYarn;
  scaling.factor = 32.0;
  scaling.original_max_position = 4096;
  scaling.truncate = false;
  scaling.attention_factor = engine::YarnMagnitude(scaling.factor);
  return shape;
}

// Llama 3.1 and later stretch the positions of Llama 3.
ModelShape MakeLlama3(const char* name, const Geometry& g, double factor) {
  ModelShape shape = MakeShape(name, g);
  RopeScaling& scaling = shape.config.rope_scaling;
  scaling.kind = RopeScaling::Kind::kLlama3;
  scaling.factor = factor;
  scaling.low_freq_factor = 1.0;
  scaling.high_freq_factor = 4.0;
  scaling.original_max_position = 8192;
  return shape;
}

// Some layers know no positions.
ModelShape MakeSmolLm3(const char* name, const Geometry& g) {
  ModelShape shape = MakeShape(name, g);
  shape.config.layer_turns =
      engine::LayersThatTurn(g.layers, engine::kNoRopeLayerInterval);
  return shape;
}

// Most layers slide.
ModelShape MakeGemma3(const char* name, const Geometry& g, int32_t window,
                      double query_scalar, double factor) {
  ModelShape shape = MakeShape(name, g);
  ModelConfig& config = shape.config;
  engine::SetGemma(config);
  config.norm_offset = 1.0;
  config.query_scalar = query_scalar;
  config.sliding_window = window;
  config.layer_slides =
      engine::GemmaLayersThatSlide(g.layers, engine::kGemmaSlidingPattern);
  config.sliding_rope_theta = engine::kGemmaSlidingTheta;
  if (factor > 1) {
    config.rope_scaling.kind = RopeScaling::Kind::kLinear;
    config.rope_scaling.factor = factor;
  }
  return shape;
}

std::vector<ModelShape> MakeShapes() {
  constexpr Architecture kLlama = Architecture::kLlama;
  return {
      MakeShape("tiny",
                {kLlama, 2, 64, 4, 2, 16, 192, 512, 1024, 1e-5, 1e4, true}),
      MakeExpertsShape("tiny-moe",
                       {Architecture::kQwen3Moe, 2, 64, 4, 2, 16, 96, 512, 1024,
                        1e-6, 1e6, true},
                       8, 2),
      MakeShape("SmolLM2-135M", {kLlama, 30, 576, 9, 3, 64, 1536, 49152, 8192,
                                 1e-5, 1e5, true}),
      MakeShape("SmolLM2-360M", {kLlama, 32, 960, 15, 5, 64, 2560, 49152, 8192,
                                 1e-5, 1e5, true}),
      MakeShape("Qwen2.5-0.5B", {Architecture::kQwen2, 24, 896, 14, 2, 64, 4864,
                                 151936, 32768, 1e-6, 1e6, true}),
      MakeShape("Qwen3-0.6B", {Architecture::kQwen3, 28, 1024, 16, 8, 128, 3072,
                               151936, 40960, 1e-6, 1e6, true}),
      MakeShape("TinyLlama-1.1B", {kLlama, 22, 2048, 32, 4, 64, 5632, 32000,
                                   2048, 1e-5, 1e4, false}),
      MakeLlama3(
          "Llama-3.2-1B",
          {kLlama, 16, 2048, 32, 8, 64, 8192, 128256, 131072, 1e-5, 5e5, true},
          32.0),
      MakeLlama3(
          "Llama-3.2-3B",
          {kLlama, 28, 3072, 24, 8, 128, 8192, 128256, 131072, 1e-5, 5e5, true},
          32.0),
      MakeSmolLm3("SmolLM3-3B", {Architecture::kSmolLm3, 36, 2048, 16, 4, 128,
                                 11008, 128256, 65536, 1e-6, 5e6, true}),
      MakeGemma3("Gemma-3-270M",
                 {Architecture::kGemma3, 18, 640, 4, 1, 256, 2048, 262144,
                  32768, 1e-6, 1e6, true},
                 512, 256, 1),
      MakeGemma3("Gemma-3-1B",
                 {Architecture::kGemma3, 26, 1152, 4, 1, 256, 6912, 262144,
                  32768, 1e-6, 1e6, true},
                 512, 256, 1),
      MakeGemma3("Gemma-3-4B",
                 {Architecture::kGemma3, 34, 2560, 8, 4, 256, 10240, 262208,
                  131072, 1e-6, 1e6, true},
                 1024, 256, 8),
      MakeGemma3("Gemma-3-12B",
                 {Architecture::kGemma3, 48, 3840, 16, 8, 256, 15360, 262208,
                  131072, 1e-6, 1e6, true},
                 1024, 256, 8),
      MakeGemma3("Gemma-3-27B",
                 {Architecture::kGemma3, 62, 5376, 32, 16, 128, 21504, 262208,
                  131072, 1e-6, 1e6, true},
                 1024, 168, 8),
      // Version 0.3 of it.
      MakeShape("Mistral-7B", {Architecture::kMistral, 32, 4096, 32, 8, 128,
                               14336, 32768, 32768, 1e-5, 1e6, false}),
      MakeLlama3("Llama-3.1-8B",
                 {kLlama, 32, 4096, 32, 8, 128, 14336, 128256, 131072, 1e-5,
                  5e5, false},
                 8.0),
      MakeShape("Phi-4", {Architecture::kPhi3, 40, 5120, 40, 10, 128, 17920,
                          100352, 16384, 1e-5, 2.5e5, false}),
      MakeExpertsShape("Qwen3-30B-A3B",
                       {Architecture::kQwen3Moe, 48, 2048, 32, 4, 128, 768,
                        151936, 40960, 1e-6, 1e6, false},
                       128, 8),
      MakeExpertsShape("Mixtral-8x7B",
                       {Architecture::kMixtral, 32, 4096, 32, 8, 128, 14336,
                        32000, 32768, 1e-5, 1e6, false},
                       8, 2),
      MakeGlmShape("GLM-4.5-Air",
                   {Architecture::kGlm4Moe, 46, 4096, 96, 8, 128, 10944, 151552,
                    131072, 1e-5, 1e6, false},
                   {1, 128, 8, 1408, 1.0, false}),
      MakeGlmShape("GLM-4.5",
                   {Architecture::kGlm4Moe, 92, 5120, 96, 8, 128, 12288, 151552,
                    131072, 1e-5, 1e6, false},
                   {3, 160, 8, 1536, 2.5, true}),
      MakeGptOssShape("gpt-oss-20b",
                      {Architecture::kGptOss, 24, 2880, 64, 8, 64, 2880, 201088,
                       131072, 1e-5, 1.5e5, false},
                      32),
      MakeGptOssShape("gpt-oss-120b",
                      {Architecture::kGptOss, 36, 2880, 64, 8, 64, 2880, 201088,
                       131072, 1e-5, 1.5e5, false},
                      128),
      MakeDeepseekShape(
          "tiny-mla",
          {Architecture::kDeepseekV3, 2, 64, 4, 1, 0, 96, 512, 1024, 1e-6, 1e4,
           false},
          {{32, 24, 16, 16, 64}, 1, 8, 2, 1, 48, 4, 2, 1.5, 1.0, 0}),
      MakeDeepseekShape(
          "DeepSeek-V2-Lite",
          {Architecture::kDeepseekV2, 27, 2048, 16, 1, 0, 10944, 102400, 163840,
           1e-6, 1e4, false},
          {{512, 0, 128, 64, 128}, 1, 64, 6, 2, 1408, 1, 1, 1.0, 40.0, 0.707}),
      MakeDeepseekShape("DeepSeek-V3",
                        {Architecture::kDeepseekV3, 61, 7168, 128, 1, 0, 18432,
                         129280, 163840, 1e-6, 1e4, false},
                        {{512, 1536, 128, 64, 128},
                         3,
                         256,
                         8,
                         1,
                         2048,
                         8,
                         4,
                         2.5,
                         40.0,
                         1.0}),
      MakeDeepseekShape("Kimi-K2",
                        {Architecture::kDeepseekV3, 61, 7168, 64, 1, 0, 18432,
                         163840, 131072, 1e-6, 5e4, false},
                        {{512, 1536, 128, 64, 128},
                         1,
                         384,
                         8,
                         1,
                         2048,
                         1,
                         1,
                         2.827,
                         32.0,
                         1.0}),
      MakeDeepseekShape(
          "GLM-4.7-Flash",
          {Architecture::kGlm4MoeLite, 47, 2048, 20, 1, 0, 10240, 154880,
           202752, 1e-5, 1e6, false},
          {{512, 768, 192, 64, 256}, 1, 64, 4, 1, 1536, 1, 1, 1.8, 1.0, 0}),
  };
}

absl::Status Apply(const char* flag, const std::optional<int32_t>& change,
                   int32_t min, int32_t max, int32_t* value) {
  if (!change.has_value()) return absl::OkStatus();
  if (*change < min || *change > max) {
    return absl::InvalidArgumentError(
        absl::StrCat(flag, " ", *change, ": from ", min, " to ", max));
  }
  *value = *change;
  return absl::OkStatus();
}

}  // namespace

absl::Span<const ModelShape> ModelShapes() {
  static const auto* shapes = new std::vector<ModelShape>(MakeShapes());
  return *shapes;
}

absl::StatusOr<ModelShape> FindModelShape(absl::string_view name) {
  std::string names;
  for (const ModelShape& shape : ModelShapes()) {
    if (absl::EqualsIgnoreCase(name, shape.name)) return shape;
    absl::StrAppend(&names, names.empty() ? "" : ", ", shape.name);
  }
  return absl::NotFoundError(
      absl::StrCat("there is no shape '", name, "'; there are: ", names));
}

bool ShapeChanges::empty() const {
  return !layers && !hidden && !heads && !kv_heads && !head_dim &&
         !intermediate && !vocab && !max_position && !tie_word_embeddings;
}

absl::StatusOr<ModelConfig> ChangeShape(ModelConfig config,
                                        const ShapeChanges& changes) {
  const int32_t head_dim = config.head_dim;
  // The bounds of engine/model_config.cc, or below.
  BATON_RETURN_IF_ERROR(
      Apply("--layers", changes.layers, 1, 1 << 12, &config.num_layers));
  BATON_RETURN_IF_ERROR(
      Apply("--hidden", changes.hidden, 1, 1 << 16, &config.hidden_size));
  BATON_RETURN_IF_ERROR(
      Apply("--heads", changes.heads, 1, 1 << 10, &config.num_heads));
  BATON_RETURN_IF_ERROR(
      Apply("--kv-heads", changes.kv_heads, 1, 1 << 10, &config.num_kv_heads));
  BATON_RETURN_IF_ERROR(
      Apply("--head-dim", changes.head_dim, 2, 1 << 10, &config.head_dim));
  BATON_RETURN_IF_ERROR(
      Apply("--intermediate", changes.intermediate, 1, 1 << 18,
            config.experts.count > 0 ? &config.experts.intermediate_size
                                     : &config.intermediate_size));
  BATON_RETURN_IF_ERROR(Apply("--vocab", changes.vocab, kMinSynthVocabulary,
                              1 << 20, &config.vocab_size));
  BATON_RETURN_IF_ERROR(Apply("--max-position", changes.max_position, 1,
                              1 << 27, &config.max_position));
  // Of models whose first layers have no experts, as many, but not all.
  std::vector<bool>& has_experts = config.layer_has_experts;
  if (!has_experts.empty()) {
    const auto first = std::find(has_experts.begin(), has_experts.end(), true);
    const auto dense =
        std::min<int64_t>(first - has_experts.begin(), config.num_layers - 1);
    has_experts.assign(config.num_layers, true);
    std::fill_n(has_experts.begin(), dense, false);
  }
  if (!config.layer_slides.empty()) {
    config.layer_slides =
        config.architecture == Architecture::kGemma3
            ? engine::GemmaLayersThatSlide(config.num_layers,
                                           engine::kGemmaSlidingPattern)
            : engine::LayersInTurns(config.num_layers);
  }
  if (config.architecture == Architecture::kGemma3) {
    engine::SetGemma(config);  // the embedding's scale is of the hidden size
    if (config.query_scalar == head_dim) config.query_scalar = config.head_dim;
  }
  if (config.architecture == Architecture::kSmolLm3) {
    config.layer_turns =
        engine::LayersThatTurn(config.num_layers, engine::kNoRopeLayerInterval);
  }
  if (changes.tie_word_embeddings) {
    config.tie_word_embeddings = *changes.tie_word_embeddings;
  }
  if (config.IsLatent() && (changes.kv_heads || changes.head_dim)) {
    return absl::InvalidArgumentError(
        "--kv-heads, --head-dim: latent attention has none of its own");
  }
  if (config.num_heads % config.num_kv_heads != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("--kv-heads ", config.num_kv_heads,
                     ": must divide --heads (", config.num_heads, ")"));
  }
  if (config.head_dim % 2 != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("--head-dim ", config.head_dim, ": must be even"));
  }
  return config;
}

}  // namespace baton::model_tools
