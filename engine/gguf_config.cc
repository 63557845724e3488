// Names of keys are those of the GGUF specification and of llama.cpp's
// converter.
#include "engine/gguf_config.h"

#include <limits>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/gguf/gguf_file.h"
#include "common/gguf/gguf_summary.h"
#include "common/status_macros.h"
#include "engine/feed_forward_config.h"
#include "engine/float_convert.h"
#include "engine/gguf_expert_config.h"
#include "engine/gguf_gemma_config.h"
#include "engine/gguf_latent_config.h"
#include "engine/latent_config.h"
#include "engine/model_limits.h"
#include "engine/rope_config.h"
#include "engine/safetensors.h"

namespace baton::engine {
namespace {

using gguf::GgufFile;

// Reads the keys "ARCHITECTURE.NAME".
class ConfigReader final {
 public:
  explicit ConfigReader(const GgufFile& file) : file_(file) {}

  absl::StatusOr<ModelConfig> Read() {
    BATON_RETURN_IF_ERROR(TakeSummary());
    BATON_RETURN_IF_ERROR(RefuseUnknownFeatures());
    BATON_RETURN_IF_ERROR(ReadGeometry());
    if (HasLatent()) {
      BATON_RETURN_IF_ERROR(ReadGgufLatent(file_, config_));
    } else {
      BATON_RETURN_IF_ERROR(ReadHeads());
    }
    BATON_RETURN_IF_ERROR(ReadRope());
    if (HasLatent()) SetLatentScores(config_);
    if (IsPhi()) BATON_RETURN_IF_ERROR(ReadPhi());
    if (config_.architecture == Architecture::kGemma3) {
      BATON_RETURN_IF_ERROR(ReadGgufGemma(file_, config_));
    }
    if (config_.architecture == Architecture::kSmolLm3) {
      config_.layer_turns =
          LayersThatTurn(config_.num_layers, kNoRopeLayerInterval);
    }
    ReadBiases();
    return config_;
  }

 private:
  std::string Key(absl::string_view name) const {
    return absl::StrCat(prefix_, name);
  }

  bool HasLatent() const { return IsLatent(config_.architecture); }

  bool HasShared() const { return HasSharedExperts(config_.architecture); }

  bool IsPhi() const { return config_.architecture == Architecture::kPhi3; }

  absl::Status ReadInt(absl::string_view name, int64_t max, int32_t& out) {
    BATON_ASSIGN_OR_RETURN(const int64_t value,
                           file_.Integer(Key(name), 1, max));
    out = static_cast<int32_t>(value);
    return absl::OkStatus();
  }

  absl::Status Unknown(absl::string_view key, absl::string_view what) const {
    return absl::UnimplementedError(
        absl::StrCat(file_.path(), ": ", key, " is ", what));
  }

  absl::Status TakeSummary() {
    BATON_ASSIGN_OR_RETURN(const gguf::Summary summary,
                           gguf::ReadSummary(file_));
    prefix_ = absl::StrCat(summary.architecture, ".");
    for (const Architecture architecture :
         {Architecture::kLlama, Architecture::kQwen2, Architecture::kQwen3,
          Architecture::kPhi3, Architecture::kSmolLm3, Architecture::kMixtral,
          Architecture::kQwen3Moe, Architecture::kGlm4Moe,
          Architecture::kGptOss, Architecture::kGemma3,
          Architecture::kDeepseekV2, Architecture::kDeepseekV3}) {
      if (summary.model_class == ArchitectureName(architecture)) {
        config_.architecture = architecture;
      }
    }
    config_.num_layers = summary.num_layers;
    config_.vocab_size = summary.vocab_size;
    config_.max_position = summary.context_length;
    config_.bos_token_id = summary.bos;
    config_.eos_token_ids = summary.eos;
    return absl::OkStatus();
  }

  // What such files may hold and what would change the result.
  absl::Status RefuseUnknownFeatures() const {
    // Of those that no architecture here has.
    const bool gpt_oss = config_.architecture == Architecture::kGptOss;
    const bool gemma = config_.architecture == Architecture::kGemma3;
    const bool has_experts = HasShared() || gpt_oss ||
                             config_.architecture == Architecture::kMixtral ||
                             config_.architecture == Architecture::kQwen3Moe;
    for (const absl::string_view name :
         {"expert_count", "expert_shared_count", "attention.sliding_window"}) {
      if (has_experts && name == "expert_count") continue;
      if (HasShared() && name == "expert_shared_count") continue;
      const bool slides = gpt_oss || gemma || IsPhi();
      if (slides && name == "attention.sliding_window") continue;
      const std::string key = Key(name);
      if (!file_.Has(key)) continue;
      BATON_ASSIGN_OR_RETURN(
          const int64_t value,
          file_.Integer(key, 0, std::numeric_limits<int64_t>::max()));
      if (value != 0) {
        return Unknown(key, absl::StrCat(value, "; Baton knows 0"));
      }
    }
    return absl::OkStatus();
  }

  absl::Status ReadGeometry() {
    BATON_RETURN_IF_ERROR(
        ReadInt("embedding_length", kMaxHiddenSize, config_.hidden_size));
    BATON_RETURN_IF_ERROR(ReadFeedForwardLengths());
    BATON_ASSIGN_OR_RETURN(
        config_.rms_norm_eps,
        file_.Number(Key("attention.layer_norm_rms_epsilon"), 1e-30, 0.1));
    config_.tie_word_embeddings = file_.FindTensor("output.weight") == nullptr;
    return absl::OkStatus();
  }

  absl::Status ReadFeedForwardLengths() {
    const bool mixtral = config_.architecture == Architecture::kMixtral;
    const bool gpt_oss = config_.architecture == Architecture::kGptOss;
    if (!mixtral && !HasShared() && !gpt_oss &&
        config_.architecture != Architecture::kQwen3Moe) {
      return ReadInt("feed_forward_length", kMaxIntermediateSize,
                     config_.intermediate_size);
    }
    ExpertsConfig& experts = config_.experts;
    BATON_RETURN_IF_ERROR(ReadInt("expert_count", kMaxExperts, experts.count));
    BATON_RETURN_IF_ERROR(
        ReadInt("expert_used_count", experts.count, experts.per_token));
    BATON_RETURN_IF_ERROR(
        ReadInt(mixtral ? "feed_forward_length" : "expert_feed_forward_length",
                kMaxIntermediateSize, experts.intermediate_size));
    if (HasShared()) {
      BATON_RETURN_IF_ERROR(ReadGgufSharingExperts(file_, prefix_, config_));
    }
    if (gpt_oss) BATON_RETURN_IF_ERROR(ReadGptOss());
    if (int64_t{experts.all()} * config_.num_layers > kMaxModelExperts) {
      return file_.Invalid(
          Key("block_count"),
          absl::StrCat("is ", config_.num_layers, ", it must be at most ",
                       kMaxModelExperts / experts.all(), " with ",
                       experts.all(), " experts each"));
    }
    return absl::OkStatus();
  }

  // What such files do not say, all of these models have.
  absl::Status ReadGptOss() {
    ExpertsConfig& experts = config_.experts;
    experts.router_bias = true;
    experts.bias = true;
    experts.swiglu_limit = 7.0;
    config_.attention_sinks = true;
    int32_t window = 0;
    BATON_RETURN_IF_ERROR(
        ReadInt("attention.sliding_window", kMaxPosition, window));
    config_.sliding_window = window;
    if (config_.num_layers > 1) {
      config_.layer_slides = LayersInTurns(config_.num_layers);
    }
    return absl::OkStatus();
  }

  // What Phi's have beside others: a window, and LongRoPE.
  absl::Status ReadPhi() {
    if (file_.FindTensor("blk.0.attn_qkv.bias") != nullptr) {
      return Unknown("tensor \"blk.0.attn_qkv.bias\"",
                     "there; Baton knows none");
    }
    // The first converters did not write it, of models that have one.
    int64_t window = config_.max_position == 4096 ? 2047 : 0;
    BATON_ASSIGN_OR_RETURN(
        window, file_.IntegerOr(Key("attention.sliding_window"), window, 0,
                                kMaxPosition));
    if (window > 0) config_.sliding_window = static_cast<int32_t>(window);
    return ReadLongRope();
  }

  // See engine/rope_config.cc for which of the lists is taken.
  absl::Status ReadLongRope() {
    const std::string magnitude = Key("rope.scaling.attn_factor");
    std::string name = "rope_factors_long.weight";
    const bool stretched = file_.FindTensor(name) != nullptr;
    const std::string type_key = Key("rope.scaling.type");
    absl::string_view type;
    if (file_.Has(type_key)) {
      BATON_ASSIGN_OR_RETURN(type, file_.String(type_key));
    }
    if (!stretched) {
      const bool named = type == "longrope";
      if (!named && !file_.Has(magnitude)) return absl::OkStatus();
      return Unknown(named ? type_key : magnitude,
                     absl::StrCat(named ? gguf::Quoted(type) : "there",
                                  " without a tensor \"", name, "\""));
    }
    if (config_.rope_scaling.kind != RopeScaling::Kind::kNone) {
      return Unknown(absl::StrCat("tensor \"", name, "\""),
                     "there beside another scaling; Baton knows one");
    }
    int32_t original = 0;
    BATON_RETURN_IF_ERROR(ReadInt("rope.scaling.original_context_length",
                                  kMaxPosition, original));
    if (config_.max_position <= original) name = "rope_factors_short.weight";
    if (file_.FindTensor(name) == nullptr) {
      return absl::NotFoundError(
          absl::StrCat(file_.path(), ": tensor \"", name, "\" is missing"));
    }
    BATON_RETURN_IF_ERROR(ReadRopeFactors(name));
    if (!file_.Has(magnitude)) return absl::OkStatus();
    BATON_ASSIGN_OR_RETURN(config_.rope_scaling.attention_factor,
                           file_.Number(magnitude, 1e-6, 1e6));
    return absl::OkStatus();
  }

  absl::Status ReadHeads() {
    BATON_RETURN_IF_ERROR(
        ReadInt("attention.head_count", kMaxHeads, config_.num_heads));
    config_.num_kv_heads = config_.num_heads;
    const std::string kv_key = Key("attention.head_count_kv");
    if (file_.Has(kv_key)) {
      BATON_RETURN_IF_ERROR(
          ReadInt("attention.head_count_kv", kMaxHeads, config_.num_kv_heads));
    }
    if (config_.num_heads % config_.num_kv_heads != 0) {
      return file_.Invalid(
          kv_key, absl::StrCat("is ", config_.num_kv_heads,
                               ", it must divide attention.head_count (",
                               config_.num_heads, ")"));
    }
    config_.head_dim = config_.hidden_size / config_.num_heads;
    const std::string dim_key = Key("attention.key_length");
    if (file_.Has(dim_key)) {
      BATON_RETURN_IF_ERROR(
          ReadInt("attention.key_length", kMaxHeadDim, config_.head_dim));
    } else if (config_.hidden_size % config_.num_heads != 0) {
      return file_.Invalid(
          Key("embedding_length"),
          absl::StrCat("is ", config_.hidden_size,
                       ", it must be a multiple of attention.head_count (",
                       config_.num_heads, ")"));
    }
    if (config_.head_dim < 2 || config_.head_dim % 2 != 0 ||
        config_.head_dim > kMaxHeadDim ||
        int64_t{config_.num_heads} * config_.head_dim > kMaxIntermediateSize) {
      const bool is_named = file_.Has(dim_key);
      return file_.Invalid(
          is_named ? dim_key : Key("attention.head_count"),
          absl::StrCat(is_named ? "is " : "asks for a key_length of ",
                       config_.head_dim, ", it must be even, at most ",
                       kMaxHeadDim, ", and at most ", kMaxIntermediateSize,
                       " with all heads"));
    }
    return ReadHeadParts();
  }

  // Values as long as keys, which turn whole but for GLM's and Phi's.
  absl::Status ReadHeadParts() {
    const bool glm = config_.architecture == Architecture::kGlm4Moe;
    const std::string sections = Key("rope.dimension_sections");
    if (glm && file_.Has(sections)) {
      return Unknown(sections, "there; Baton knows RoPE of texts alone");
    }
    for (const absl::string_view name :
         {"attention.value_length", "rope.dimension_count"}) {
      if (!file_.Has(Key(name))) continue;
      int32_t value = 0;
      BATON_RETURN_IF_ERROR(ReadInt(name, kMaxHeadDim, value));
      if ((glm || IsPhi()) && name == "rope.dimension_count" &&
          value < config_.head_dim) {
        if (value % 2 != 0) {
          return file_.Invalid(Key(name),
                               absl::StrCat("is ", value, ", it must be even"));
        }
        config_.rotary_dim = value;
      } else if (value != config_.head_dim) {
        return Unknown(Key(name), absl::StrCat(value,
                                               "; Baton knows only the "
                                               "length of a head (",
                                               config_.head_dim, ")"));
      }
    }
    return absl::OkStatus();
  }

  absl::Status ReadRope() {
    const std::string base = Key("rope.freq_base");
    if (config_.architecture == Architecture::kGemma3) config_.rope_theta = 1e6;
    if (file_.Has(base)) {
      BATON_ASSIGN_OR_RETURN(config_.rope_theta, file_.Number(base, 1.0, 1e12));
    }
    RopeScaling& scaling = config_.rope_scaling;
    const std::string type_key = Key("rope.scaling.type");
    // An older name, without a type.
    std::string factor_key = Key("rope.scale_linear");
    absl::string_view type = file_.Has(factor_key) ? "linear" : "none";
    if (file_.Has(type_key)) {
      BATON_ASSIGN_OR_RETURN(type, file_.String(type_key));
      factor_key = Key("rope.scaling.factor");
    }
    if (type == "linear") {
      scaling.kind = RopeScaling::Kind::kLinear;
      BATON_ASSIGN_OR_RETURN(scaling.factor,
                             file_.Number(factor_key, 1.0, 1e6));
    } else if (type == "yarn") {
      BATON_RETURN_IF_ERROR(ReadYarn(factor_key));
    } else if (type != "none" && !(IsPhi() && type == "longrope")) {
      return Unknown(type_key,
                     absl::StrCat(gguf::Quoted(type),
                                  "; Baton knows none, linear and yarn"));
    }
    return ReadRopeFactors("rope_freqs.weight");
  }

  absl::Status ReadYarn(const std::string& factor_key) {
    // What would change the result, and no file of these models has.
    for (const absl::string_view name :
         {"attn_factor", "yarn_attn_factor", "yarn_ext_factor",
          "yarn_log_multiplier"}) {
      if (HasLatent() && name == "yarn_log_multiplier") continue;
      const std::string key = Key(absl::StrCat("rope.scaling.", name));
      if (file_.Has(key)) return Unknown(key, "there; Baton knows none");
    }
    RopeScaling& scaling = config_.rope_scaling;
    scaling.kind = RopeScaling::Kind::kYarn;
    BATON_ASSIGN_OR_RETURN(scaling.factor, file_.Number(factor_key, 1.0, 1e6));
    int32_t original = 0;
    BATON_RETURN_IF_ERROR(ReadInt("context_length", kMaxPosition, original));
    if (file_.Has(Key("rope.scaling.original_context_length"))) {
      BATON_RETURN_IF_ERROR(ReadInt("rope.scaling.original_context_length",
                                    kMaxPosition, original));
    }
    scaling.original_max_position = original;
    const std::string fast = Key("rope.scaling.yarn_beta_fast");
    if (file_.Has(fast)) {
      BATON_ASSIGN_OR_RETURN(scaling.beta_fast, file_.Number(fast, 1e-6, 1e6));
    }
    const std::string slow = Key("rope.scaling.yarn_beta_slow");
    if (file_.Has(slow)) {
      BATON_ASSIGN_OR_RETURN(scaling.beta_slow, file_.Number(slow, 1e-6, 1e6));
    }
    if (scaling.beta_fast <= scaling.beta_slow) {
      return absl::InvalidArgumentError(absl::StrCat(
          file_.path(), ": ", fast, " is ", scaling.beta_fast,
          ", it must be more than yarn_beta_slow (", scaling.beta_slow, ")"));
    }
    if (config_.rope_theta <= 1.0) {
      return absl::InvalidArgumentError(absl::StrCat(
          file_.path(), ": ", Key("rope.freq_base"), " is ", config_.rope_theta,
          ", it must be more than 1 with YaRN"));
    }
    scaling.truncate = config_.architecture != Architecture::kGptOss;
    scaling.attention_factor = YarnMagnitude(scaling.factor);
    if (HasLatent()) return ReadGgufScoreWeight(file_, scaling);
    return absl::OkStatus();
  }

  absl::Status ReadRopeFactors(const std::string& name) {
    const gguf::Tensor* const factors = file_.FindTensor(name);
    if (factors == nullptr) return absl::OkStatus();
    const std::vector<int64_t> shape = {config_.RotaryDim() / 2};
    if (factors->shape != shape || factors->type != gguf::kF32) {
      return absl::InvalidArgumentError(
          absl::StrCat(file_.path(), ": tensor \"", name, "\" has shape ",
                       ShapeString(factors->shape), ", it must be ",
                       ShapeString(shape), " in F32"));
    }
    RopeScaling& scaling = config_.rope_scaling;
    if (scaling.kind == RopeScaling::Kind::kYarn) {
      return Unknown(absl::StrCat("tensor \"", name, "\""),
                     "there; Baton knows none with YaRN");
    }
    // Together with a linear factor, both divide.
    const double linear = scaling.factor;
    scaling = RopeScaling{.kind = RopeScaling::Kind::kFactors};
    std::vector<float> values(shape[0]);
    ConvertToFloat(DType::kF32, factors->bytes, absl::MakeSpan(values));
    for (const float value : values) {
      // Also refuses NaN.
      if (!(value > 0.0f && value <= 1e6f)) {
        return absl::InvalidArgumentError(
            absl::StrCat(file_.path(), ": tensor \"", name, "\" holds ", value,
                         ", not a number from 0 to 1e6"));
      }
      scaling.factors.push_back(value * linear);
    }
    return absl::OkStatus();
  }

  void ReadBiases() {
    const auto has = [this](absl::string_view name) {
      return file_.FindTensor(absl::StrCat("blk.0.", name)) != nullptr;
    };
    config_.qkv_bias =
        config_.architecture == Architecture::kQwen2 || has("attn_q.bias");
    config_.o_bias = has("attn_output.bias");
    config_.mlp_bias = has("ffn_gate.bias") && config_.experts.count == 0;
    config_.qk_norm = config_.architecture == Architecture::kQwen3 ||
                      config_.architecture == Architecture::kQwen3Moe ||
                      config_.architecture == Architecture::kGemma3 ||
                      (config_.architecture == Architecture::kGlm4Moe &&
                       has("attn_q_norm.weight"));
  }

  const GgufFile& file_;
  std::string prefix_;
  ModelConfig config_;
};

}  // namespace

absl::StatusOr<ModelConfig> LoadGgufConfig(const std::string& path) {
  BATON_ASSIGN_OR_RETURN(const auto file, GgufFile::Open(path));
  return ConfigReader(*file).Read();
}

}  // namespace baton::engine
