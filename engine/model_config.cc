// Field names, defaults and meanings are those of Hugging Face transformers
// (LlamaConfig, MistralConfig, MixtralConfig, Qwen2Config, Qwen3Config,
// Qwen3MoeConfig, Glm4MoeConfig, Phi3Config, SmolLM3Config, GptOssConfig,
// Gemma3TextConfig, DeepseekV2Config, DeepseekV3Config, Glm4MoeLiteConfig and
// modeling_rope_utils). Fields that would change the result and that Baton does
// not know are refused; fields that change nothing are ignored.
#include "engine/model_config.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/gguf/gguf_file.h"
#include "common/log.h"
#include "common/status_macros.h"
#include "common/text_model_json.h"
#include "engine/feed_forward_config.h"
#include "engine/gemma_config.h"
#include "engine/gguf_config.h"
#include "engine/json_fields.h"
#include "engine/json_file.h"
#include "engine/latent_config.h"
#include "engine/model_limits.h"
#include "engine/rope_config.h"

namespace baton::engine {
namespace {

using nlohmann::json;

constexpr int64_t kMaxConfigBytes = int64_t{1} << 20;

constexpr Architecture kArchitectures[] = {
    Architecture::kLlama,      Architecture::kMistral,
    Architecture::kQwen2,      Architecture::kQwen3,
    Architecture::kMixtral,    Architecture::kQwen3Moe,
    Architecture::kGlm4Moe,    Architecture::kPhi3,
    Architecture::kSmolLm3,    Architecture::kGptOss,
    Architecture::kGemma3,     Architecture::kDeepseekV2,
    Architecture::kDeepseekV3, Architecture::kGlm4MoeLite};

// Whether the file says of each layer whether it slides.
bool HasLayerTypes(Architecture architecture) {
  return architecture == Architecture::kQwen2 ||
         architecture == Architecture::kQwen3 ||
         architecture == Architecture::kGptOss ||
         architecture == Architecture::kGemma3;
}

int32_t DefaultMaxPosition(Architecture architecture) {
  switch (architecture) {
    case Architecture::kLlama:
    case Architecture::kDeepseekV2:
      return 2048;
    case Architecture::kPhi3:
    case Architecture::kDeepseekV3:
      return 4096;
    case Architecture::kMistral:
    case Architecture::kMixtral:
    case Architecture::kGlm4Moe:
    case Architecture::kGptOss:
    case Architecture::kGemma3:
      return 131072;
    case Architecture::kQwen2:
    case Architecture::kQwen3:
    case Architecture::kQwen3Moe:
    case Architecture::kSmolLm3:
      return 32768;
    case Architecture::kGlm4MoeLite:
      return 202752;
  }
  LOG(FATAL) << "not an architecture";
}

int32_t DefaultKvHeads(Architecture architecture, int32_t num_heads) {
  switch (architecture) {
    case Architecture::kLlama:
    case Architecture::kPhi3:
      return num_heads;
    case Architecture::kMistral:
    case Architecture::kMixtral:
    case Architecture::kGlm4Moe:
    case Architecture::kGptOss:
      return 8;
    case Architecture::kQwen2:
    case Architecture::kQwen3:
      return 32;
    case Architecture::kQwen3Moe:
    case Architecture::kSmolLm3:
    case Architecture::kGemma3:
      return 4;
    // Of latent attention, which has one (ReadLatent).
    case Architecture::kDeepseekV2:
    case Architecture::kDeepseekV3:
    case Architecture::kGlm4MoeLite:
      return 1;
  }
  LOG(FATAL) << "not an architecture";
}

void ReadArchitecture(JsonFields& fields, ModelConfig& config) {
  const json* list = fields.Find("architectures");
  if (list == nullptr) {
    return fields.Fail(absl::InvalidArgumentError(
        absl::StrCat(fields.Where("architectures"), " is missing")));
  }
  if (!list->is_array() || list->size() != 1 || !list->at(0).is_string()) {
    return fields.FailField("architectures", *list, "a list of one string");
  }
  const std::string& name = list->at(0).get_ref<const std::string&>();
  std::string known;
  for (Architecture architecture : kArchitectures) {
    if (name == ArchitectureName(architecture)) {
      config.architecture = architecture;
      return;
    }
    absl::StrAppend(&known, known.empty() ? "" : ", ",
                    ArchitectureName(architecture));
  }
  fields.Fail(absl::UnimplementedError(
      absl::StrCat(fields.Where("architectures"), " is ", JsonExcerpt(*list),
                   "; Baton knows ", known)));
}

// Things that a Llama-family config may hold and that would change the result.
void RefuseUnknownFeatures(JsonFields& fields, const ModelConfig& config) {
  if (config.architecture == Architecture::kGemma3) return;
  const std::string act = fields.String("hidden_act", "silu");
  if (fields.status().ok() && act != "silu") {
    fields.Fail(absl::UnimplementedError(
        absl::StrCat(fields.Where("hidden_act"), " is ", JsonExcerpt(json(act)),
                     "; Baton knows \"silu\"")));
  }
}

void ReadHeads(JsonFields& fields, ModelConfig& config) {
  config.num_heads = fields.RequiredInt("num_attention_heads", 1, kMaxHeads);
  const int32_t default_kv_heads =
      fields.IsNull("num_key_value_heads")
          ? config.num_heads
          : DefaultKvHeads(config.architecture, config.num_heads);
  config.num_kv_heads =
      fields.Int("num_key_value_heads", default_kv_heads, 1, kMaxHeads);
  int32_t default_head_dim = 128;
  const bool head_dim_given = fields.Find("head_dim") != nullptr;
  if (config.architecture == Architecture::kGptOss) {
    default_head_dim = 64;
  } else if (config.architecture != Architecture::kQwen3) {
    default_head_dim = std::max(1, config.hidden_size / config.num_heads);
  }
  config.head_dim = fields.Int("head_dim", default_head_dim, 1, kMaxHeadDim);
  if (!fields.status().ok()) return;

  if (config.num_heads % config.num_kv_heads != 0) {
    fields.FailField("num_key_value_heads", config.num_kv_heads,
                     absl::StrCat("a divisor of num_attention_heads (",
                                  config.num_heads, ")"));
  }
  if (!head_dim_given && config.architecture != Architecture::kQwen3 &&
      config.architecture != Architecture::kGptOss &&
      config.hidden_size % config.num_heads != 0) {
    fields.FailField(
        "hidden_size", config.hidden_size,
        absl::StrCat("a multiple of num_attention_heads (", config.num_heads,
                     ") when head_dim is not given"));
  }
  // RoPE turns pairs of elements.
  if (config.head_dim % 2 != 0 || config.head_dim > kMaxHeadDim) {
    fields.FailField("head_dim", config.head_dim,
                     absl::StrCat("even and at most ", kMaxHeadDim));
  }
  if (int64_t{config.num_heads} * config.head_dim > kMaxIntermediateSize) {
    fields.FailField(
        "num_attention_heads", config.num_heads,
        absl::StrCat("at most ", kMaxIntermediateSize,
                     " when multiplied by head_dim (", config.head_dim, ")"));
  }
}

void ReadGeometry(JsonFields& fields, ModelConfig& config) {
  config.hidden_size = fields.RequiredInt("hidden_size", 1, kMaxHiddenSize);
  config.num_layers = fields.RequiredInt("num_hidden_layers", 1, kMaxLayers);
  ReadFeedForward(fields, config);
  config.vocab_size = fields.RequiredInt("vocab_size", 1, kMaxVocabSize);
  config.max_position =
      fields.Int("max_position_embeddings",
                 DefaultMaxPosition(config.architecture), 1, kMaxPosition);
  const bool large_eps = config.architecture == Architecture::kMixtral ||
                         config.architecture == Architecture::kGlm4Moe ||
                         config.architecture == Architecture::kPhi3 ||
                         config.architecture == Architecture::kGptOss ||
                         config.architecture == Architecture::kGlm4MoeLite;
  config.rms_norm_eps =
      fields.Number("rms_norm_eps", large_eps ? 1e-5 : 1e-6, 1e-30, 0.1);
  config.tie_word_embeddings = fields.Bool(
      "tie_word_embeddings", config.architecture == Architecture::kSmolLm3);
  if (IsLatent(config.architecture)) {
    ReadLatent(fields, config);
  } else {
    ReadHeads(fields, config);
  }
}

void ReadBiases(JsonFields& fields, ModelConfig& config) {
  switch (config.architecture) {
    case Architecture::kLlama:
    case Architecture::kSmolLm3:
      config.qkv_bias = fields.Bool("attention_bias", false);
      config.o_bias = config.qkv_bias;
      config.mlp_bias = fields.Bool("mlp_bias", false);
      break;
    case Architecture::kMistral:
    case Architecture::kMixtral:
    case Architecture::kPhi3:
    case Architecture::kDeepseekV2:
    case Architecture::kDeepseekV3:
    case Architecture::kGlm4MoeLite:
      break;
    case Architecture::kQwen2:
      config.qkv_bias = true;
      break;
    case Architecture::kQwen3:
    case Architecture::kQwen3Moe:
      config.qkv_bias = fields.Bool("attention_bias", false);
      config.o_bias = config.qkv_bias;
      config.qk_norm = true;
      break;
    case Architecture::kGemma3:
      config.qkv_bias = fields.Bool("attention_bias", false);
      config.o_bias = config.qkv_bias;
      break;
    case Architecture::kGlm4Moe:
      config.qkv_bias = fields.Bool("attention_bias", false);
      config.qk_norm = fields.Bool("use_qk_norm", false);
      break;
    case Architecture::kGptOss:
      config.qkv_bias = fields.Bool("attention_bias", true);
      config.o_bias = config.qkv_bias;
      break;
  }
}

// Which layers slide: as `layer_types` says where the file has it, else, of
// gpt-oss every other one, of Gemma all but every sixth, of Qwen those from
// max_window_layers on.
std::vector<bool> ReadLayerSlides(JsonFields& fields,
                                  const ModelConfig& config) {
  const int32_t first_sliding =
      fields.Int("max_window_layers", 28, 0, kMaxLayers);
  std::vector<bool> slides(config.num_layers, false);
  const json* types = fields.Find("layer_types");
  if (types == nullptr) {
    if (config.architecture == Architecture::kGptOss) {
      return LayersInTurns(config.num_layers);
    }
    if (config.architecture == Architecture::kGemma3) {
      return GemmaLayersThatSlide(
          config.num_layers, fields.Int("sliding_window_pattern",
                                        kGemmaSlidingPattern, 1, kMaxLayers));
    }
    for (int32_t layer = first_sliding; layer < config.num_layers; ++layer) {
      slides[layer] = true;
    }
    return slides;
  }
  if (!types->is_array() ||
      types->size() != static_cast<size_t>(config.num_layers)) {
    fields.FailField("layer_types", *types,
                     absl::StrCat("a list of num_hidden_layers (",
                                  config.num_layers, ") strings"));
    return slides;
  }
  for (int32_t layer = 0; layer < config.num_layers; ++layer) {
    const json& type = (*types)[layer];
    slides[layer] = type == "sliding_attention";
    if (!slides[layer] && type != "full_attention") {
      fields.Fail(absl::UnimplementedError(absl::StrCat(
          fields.Where("layer_types"), "[", layer, "] is ", JsonExcerpt(type),
          "; Baton knows \"full_attention\" and \"sliding_attention\"")));
    }
  }
  return slides;
}

void ReadSlidingWindow(JsonFields& fields, ModelConfig& config) {
  // Llama and GLM have no window: transformers ignores the field there.
  if (config.architecture == Architecture::kLlama ||
      config.architecture == Architecture::kGlm4Moe || config.IsLatent()) {
    return;
  }
  if (config.architecture == Architecture::kQwen3Moe ||
      config.architecture == Architecture::kSmolLm3) {
    // No published one has, and versions of transformers differ on which
    // layers of Qwen's slide.
    if (fields.Bool("use_sliding_window", false)) {
      fields.Fail(absl::UnimplementedError(
          absl::StrCat(fields.Where("use_sliding_window"),
                       " is true; Baton knows false with ",
                       ArchitectureName(config.architecture))));
    }
    return;
  }
  std::optional<int32_t> window;
  // Files without the field mean 4096, gpt-oss's 128, and Mixtral's and Phi's
  // none.
  const bool given = fields.Find("sliding_window") != nullptr;
  if (given || (config.architecture != Architecture::kMixtral &&
                config.architecture != Architecture::kPhi3 &&
                !fields.IsNull("sliding_window"))) {
    window =
        fields.Int("sliding_window",
                   config.architecture == Architecture::kGptOss ? 128 : 4096, 1,
                   kMaxPosition);
  }
  if (HasLayerTypes(config.architecture)) {
    // layer_types is checked even when nothing slides: an unknown kind of layer
    // means that this is another model.
    std::vector<bool> slides = ReadLayerSlides(fields, config);
    const bool used = config.architecture == Architecture::kGptOss ||
                      config.architecture == Architecture::kGemma3 ||
                      fields.Bool("use_sliding_window", false);
    if (!used) window.reset();
    const auto sliding = std::count(slides.begin(), slides.end(), true);
    if (sliding == 0) window.reset();
    if (window.has_value() && sliding < config.num_layers) {
      config.layer_slides = std::move(slides);
    }
  }
  config.sliding_window = window;
}

// An integer, a list of integers, or nothing.
std::vector<TokenId> ReadTokens(JsonFields& fields, absl::string_view name,
                                int32_t vocab_size) {
  std::vector<TokenId> tokens;
  const json* value = fields.Find(name);
  if (value == nullptr) return tokens;
  const json list = value->is_array() ? *value : json::array({*value});
  for (const json& entry : list) {
    int64_t token = 0;
    if (!JsonInt(entry, 0, int64_t{vocab_size} - 1, &token)) {
      fields.FailField(name, *value,
                       absl::StrCat("a token, or a list of tokens, from 0 to ",
                                    vocab_size - 1));
      return {};
    }
    const auto id = static_cast<TokenId>(token);
    if (std::find(tokens.begin(), tokens.end(), id) == tokens.end()) {
      tokens.push_back(id);
    }
  }
  return tokens;
}

void ReadSpecialTokens(JsonFields& fields, ModelConfig& config) {
  const std::vector<TokenId> bos =
      ReadTokens(fields, "bos_token_id", config.vocab_size);
  if (!bos.empty()) config.bos_token_id = bos.front();
  std::vector<TokenId> eos =
      ReadTokens(fields, "eos_token_id", config.vocab_size);
  if (!eos.empty()) config.eos_token_ids = std::move(eos);
}

}  // namespace

std::vector<bool> LayersInTurns(int32_t num_layers) {
  std::vector<bool> layers(num_layers);
  for (int32_t i = 0; i < num_layers; ++i) layers[i] = i % 2 == 0;
  return layers;
}

const char* ArchitectureName(Architecture architecture) {
  switch (architecture) {
    case Architecture::kLlama:
      return "LlamaForCausalLM";
    case Architecture::kMistral:
      return "MistralForCausalLM";
    case Architecture::kQwen2:
      return "Qwen2ForCausalLM";
    case Architecture::kQwen3:
      return "Qwen3ForCausalLM";
    case Architecture::kMixtral:
      return "MixtralForCausalLM";
    case Architecture::kQwen3Moe:
      return "Qwen3MoeForCausalLM";
    case Architecture::kGlm4Moe:
      return "Glm4MoeForCausalLM";
    case Architecture::kPhi3:
      return "Phi3ForCausalLM";
    case Architecture::kSmolLm3:
      return "SmolLM3ForCausalLM";
    case Architecture::kGptOss:
      return "GptOssForCausalLM";
    case Architecture::kGemma3:
      return "Gemma3ForCausalLM";
    case Architecture::kDeepseekV2:
      return "DeepseekV2ForCausalLM";
    case Architecture::kDeepseekV3:
      return "DeepseekV3ForCausalLM";
    case Architecture::kGlm4MoeLite:
      return "Glm4MoeLiteForCausalLM";
  }
  return "unknown";
}

double ModelConfig::ScoreScale() const {
  return 1.0 / std::sqrt(query_scalar > 0 ? query_scalar : head_dim);
}

absl::StatusOr<ModelConfig> LoadModelConfig(const std::string& model) {
  std::error_code error;
  if (gguf::IsGgufFile(model)) return LoadGgufConfig(model);
  if (!std::filesystem::is_directory(model, error)) {
    return absl::NotFoundError(
        absl::StrCat(model, ": no such model directory or GGUF file"));
  }
  const std::string file = absl::StrCat(model, "/config.json");
  BATON_ASSIGN_OR_RETURN(json whole, ReadJsonObject(file, kMaxConfigBytes));
  const json root = TextModelJson(std::move(whole));
  ModelConfig config;
  JsonFields fields(file, root);
  ReadArchitecture(fields, config);
  BATON_RETURN_IF_ERROR(fields.status());
  RefuseUnknownFeatures(fields, config);
  config.quantization = ReadQuantization(fields);
  if (config.quantization.method == QuantizationConfig::Method::kMxfp4 &&
      config.architecture != Architecture::kGptOss) {
    fields.Fail(absl::UnimplementedError(
        absl::StrCat(fields.Where("quantization_config"),
                     ".quant_method is \"mxfp4\"; Baton knows that with ",
                     ArchitectureName(Architecture::kGptOss))));
  }
  ReadGeometry(fields, config);
  BATON_RETURN_IF_ERROR(fields.status());
  ReadBiases(fields, config);
  config.attention_sinks = config.architecture == Architecture::kGptOss;
  if (config.architecture == Architecture::kGemma3) ReadGemma(fields, config);
  ReadRope(file, fields, config);
  if (config.IsLatent()) SetLatentScores(config);
  ReadSlidingWindow(fields, config);
  ReadSpecialTokens(fields, config);
  BATON_RETURN_IF_ERROR(fields.status());

  const std::string generation_file =
      absl::StrCat(model, "/generation_config.json");
  if (std::filesystem::exists(generation_file, error)) {
    BATON_ASSIGN_OR_RETURN(const json generation,
                           ReadJsonObject(generation_file, kMaxConfigBytes));
    JsonFields generation_fields(generation_file, generation);
    ReadSpecialTokens(generation_fields, config);
    BATON_RETURN_IF_ERROR(generation_fields.status());
  }
  return config;
}

}  // namespace baton::engine
