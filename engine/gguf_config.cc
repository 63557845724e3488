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
#include "engine/float_convert.h"
#include "engine/model_limits.h"
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
    BATON_RETURN_IF_ERROR(ReadHeads());
    BATON_RETURN_IF_ERROR(ReadRope());
    ReadBiases();
    return config_;
  }

 private:
  std::string Key(absl::string_view name) const {
    return absl::StrCat(prefix_, name);
  }

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
          Architecture::kMixtral, Architecture::kQwen3Moe}) {
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
    const bool has_experts = config_.architecture == Architecture::kMixtral ||
                             config_.architecture == Architecture::kQwen3Moe;
    for (const absl::string_view name :
         {"expert_count", "expert_shared_count", "attention.sliding_window"}) {
      if (has_experts && name == "expert_count") continue;
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
    if (!mixtral && config_.architecture != Architecture::kQwen3Moe) {
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
    if (int64_t{experts.count} * config_.num_layers > kMaxModelExperts) {
      return file_.Invalid(
          Key("block_count"),
          absl::StrCat("is ", config_.num_layers, ", it must be at most ",
                       kMaxModelExperts / experts.count, " with ",
                       experts.count, " experts each"));
    }
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
    for (const absl::string_view name :
         {"attention.value_length", "rope.dimension_count"}) {
      if (!file_.Has(Key(name))) continue;
      int32_t value = 0;
      BATON_RETURN_IF_ERROR(ReadInt(name, kMaxHeadDim, value));
      if (value != config_.head_dim) {
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
    } else if (type != "none") {
      return Unknown(type_key, absl::StrCat(gguf::Quoted(type),
                                            "; Baton knows none and linear"));
    }
    return ReadRopeFactors();
  }

  absl::Status ReadRopeFactors() {
    const gguf::Tensor* const factors = file_.FindTensor("rope_freqs.weight");
    if (factors == nullptr) return absl::OkStatus();
    const std::vector<int64_t> shape = {config_.head_dim / 2};
    if (factors->shape != shape || factors->type != gguf::kF32) {
      return absl::InvalidArgumentError(absl::StrCat(
          file_.path(), ": tensor \"rope_freqs.weight\" has shape ",
          ShapeString(factors->shape), ", it must be ", ShapeString(shape),
          " in F32"));
    }
    RopeScaling& scaling = config_.rope_scaling;
    // Together with a linear factor, both divide.
    const double linear = scaling.factor;
    scaling = RopeScaling{.kind = RopeScaling::Kind::kFactors};
    std::vector<float> values(shape[0]);
    ConvertToFloat(DType::kF32, factors->bytes, absl::MakeSpan(values));
    for (const float value : values) {
      // Also refuses NaN.
      if (!(value > 0.0f && value <= 1e6f)) {
        return absl::InvalidArgumentError(
            absl::StrCat(file_.path(), ": tensor \"rope_freqs.weight\" holds ",
                         value, ", not a number from 0 to 1e6"));
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
                      config_.architecture == Architecture::kQwen3Moe;
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
