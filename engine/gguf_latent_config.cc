// Names of keys, and what files leave unsaid, are llama.cpp's.
#include "engine/gguf_latent_config.h"

#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/status_macros.h"
#include "engine/latent_config.h"
#include "engine/model_limits.h"

namespace baton::engine {
namespace {

std::string LatentKey(absl::string_view name) {
  return absl::StrCat("deepseek2.", name);
}

// Files whose attention has matrices for each head say the lengths of heads
// under names of their own; the plain ones then are those of what is kept.
absl::StatusOr<int64_t> HeadLength(const gguf::GgufFile& file,
                                   absl::string_view name) {
  const std::string of_heads = LatentKey(absl::StrCat(name, "_mla"));
  return file.Integer(file.Has(of_heads) ? of_heads : LatentKey(name), 1,
                      kMaxHeadDim);
}

}  // namespace

absl::Status ReadGgufLatent(const gguf::GgufFile& file, ModelConfig& config) {
  LatentConfig& latent = config.latent;
  BATON_ASSIGN_OR_RETURN(
      config.num_heads,
      file.Integer(LatentKey("attention.head_count"), 1, kMaxHeads));
  BATON_ASSIGN_OR_RETURN(
      latent.rank,
      file.Integer(LatentKey("attention.kv_lora_rank"), 1, kMaxHeadDim));
  // Of models without, files say 0, or a number without meaning it.
  BATON_ASSIGN_OR_RETURN(
      latent.query_rank,
      file.IntegerOr(LatentKey("attention.q_lora_rank"), 0, 0, kMaxHiddenSize));
  if (file.FindTensor("blk.0.attn_q.weight") != nullptr) latent.query_rank = 0;
  BATON_ASSIGN_OR_RETURN(
      latent.rope_dim,
      file.Integer(LatentKey("rope.dimension_count"), 2, kMaxHeadDim));
  BATON_ASSIGN_OR_RETURN(const int64_t key_length,
                         HeadLength(file, "attention.key_length"));
  BATON_ASSIGN_OR_RETURN(latent.value_dim,
                         HeadLength(file, "attention.value_length"));
  if (key_length <= latent.rope_dim) {
    return file.Invalid(LatentKey("attention.key_length"),
                        absl::StrCat("is ", key_length,
                                     ", it must be more than "
                                     "rope.dimension_count (",
                                     latent.rope_dim, ")"));
  }
  latent.nope_dim = static_cast<int32_t>(key_length) - latent.rope_dim;
  if (absl::Status status = CheckLatent(config); !status.ok()) {
    return absl::Status(
        status.code(),
        absl::StrCat(file.path(), ": ", LatentKey("attention.kv_lora_rank"),
                     " and the lengths beside it: ", status.message()));
  }
  SetLatentHeads(config);
  config.rope_interleaved = true;
  return absl::OkStatus();
}

absl::Status ReadGgufScoreWeight(const gguf::GgufFile& file,
                                 RopeScaling& scaling) {
  const std::string key = LatentKey("rope.scaling.yarn_log_multiplier");
  if (!file.Has(key)) return absl::OkStatus();
  // A tenth of it, as it stands before the logarithm.
  BATON_ASSIGN_OR_RETURN(const double multiplier, file.Number(key, 0.0, 1e6));
  scaling.score_weight = 10 * multiplier;
  // Published models weigh what turns and what scores alike: of the former
  // nothing is left.
  if (multiplier > 0) scaling.attention_factor = 1.0;
  return absl::OkStatus();
}

}  // namespace baton::engine
