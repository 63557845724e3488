#include "engine/latent_config.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "engine/model_limits.h"
#include "engine/rope_config.h"

namespace baton::engine {
namespace {

// What quantized activations come in (kGroupInputs), and panels of values.
constexpr int32_t kValueStep = 64;
constexpr int32_t kRankStep = 16;

}  // namespace

bool IsLatent(Architecture architecture) {
  return architecture == Architecture::kDeepseekV2 ||
         architecture == Architecture::kDeepseekV3 ||
         architecture == Architecture::kGlm4MoeLite;
}

void SetLatentHeads(ModelConfig& config) {
  config.num_kv_heads = 1;
  config.head_dim = config.latent.rank + config.latent.rope_dim;
  config.rotary_dim = config.latent.rope_dim;
}

absl::Status CheckLatent(const ModelConfig& config) {
  const LatentConfig& latent = config.latent;
  if (latent.rank % kRankStep != 0) {
    return absl::UnimplementedError(
        absl::StrCat("a rank of keys and values of ", latent.rank,
                     "; Baton knows multiples of ", kRankStep));
  }
  if (latent.rope_dim % 2 != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("RoPE turns ", latent.rope_dim,
                     " elements of a head; they must be pairs"));
  }
  if (latent.value_dim % kValueStep != 0) {
    return absl::UnimplementedError(
        absl::StrCat("values of ", latent.value_dim,
                     " elements; Baton knows multiples of ", kValueStep));
  }
  const int64_t widest = std::max(
      {latent.rank + latent.rope_dim, latent.query_dim(), latent.value_dim});
  if (latent.rank + latent.rope_dim > kMaxHeadDim) {
    return absl::InvalidArgumentError(
        absl::StrCat("keys of ", latent.rank + latent.rope_dim,
                     " elements are longer than ", kMaxHeadDim));
  }
  if (config.num_heads * widest > kMaxIntermediateSize) {
    return absl::InvalidArgumentError(
        absl::StrCat(config.num_heads, " heads of ", widest,
                     " elements are more than ", kMaxIntermediateSize));
  }
  return absl::OkStatus();
}

void ReadLatent(JsonFields& fields, ModelConfig& config) {
  const bool glm = config.architecture == Architecture::kGlm4MoeLite;
  LatentConfig& latent = config.latent;
  config.num_heads = fields.RequiredInt("num_attention_heads", 1, kMaxHeads);
  latent.rank = fields.Int("kv_lora_rank", 512, 1, kMaxHeadDim);
  if (!fields.IsNull("q_lora_rank")) {
    latent.query_rank =
        fields.Int("q_lora_rank", glm ? 768 : 1536, 1, kMaxHiddenSize);
  }
  latent.nope_dim =
      fields.Int("qk_nope_head_dim", glm ? 192 : 128, 2, kMaxHeadDim);
  latent.rope_dim = fields.Int("qk_rope_head_dim", 64, 2, kMaxHeadDim);
  latent.value_dim = fields.Int("v_head_dim", glm ? 256 : 128, 1, kMaxHeadDim);
  // Of DeepSeek-V2's, which do not say it, always.
  config.rope_interleaved = config.architecture == Architecture::kDeepseekV2 ||
                            fields.Bool("rope_interleave", true);
  // Some small models of V2's have attention as others do.
  if (!fields.Bool("use_mla", true)) {
    fields.Fail(absl::UnimplementedError(absl::StrCat(
        fields.Where("use_mla"), " is false; Baton knows true with ",
        ArchitectureName(config.architecture))));
  }
  if (fields.Bool("attention_bias", false)) {
    fields.Fail(absl::UnimplementedError(absl::StrCat(
        fields.Where("attention_bias"), " is true; Baton knows false with ",
        ArchitectureName(config.architecture))));
  }
  if (!fields.status().ok()) return;
  if (absl::Status status = CheckLatent(config); !status.ok()) {
    return fields.Fail(absl::Status(
        status.code(),
        absl::StrCat(fields.Where("kv_lora_rank"),
                     " and the lengths beside it: ", status.message())));
  }
  SetLatentHeads(config);
}

void SetLatentScores(ModelConfig& config) {
  const RopeScaling& scaling = config.rope_scaling;
  const double magnitude =
      scaling.kind == RopeScaling::Kind::kYarn && scaling.score_weight > 0
          ? YarnMagnitude(scaling.factor, scaling.score_weight)
          : 1.0;
  config.query_scalar = config.latent.query_dim() / std::pow(magnitude, 4);
}

}  // namespace baton::engine
