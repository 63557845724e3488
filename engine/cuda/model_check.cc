#include "engine/cuda/model_check.h"

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "engine/cuda/attention.h"
#include "engine/cuda/latent_attention.h"
#include "engine/cuda/shard.h"

namespace baton::engine::cuda {

namespace {

// Of attention: what a block's memory holds at most.
absl::StatusOr<int64_t> CheckAttention(const ModelConfig& config,
                                       const KvLayout& layout) {
  const int32_t stored = layout.stored_head_dim();
  if (config.IsLatent()) {
    const LatentConfig& latent = config.latent;
    if (!IsLatentAttention(stored, latent.rank)) {
      return absl::UnimplementedError(absl::StrCat(
          "kv_lora_rank: the cuda backend has no kernel for ", latent.rank,
          " beside qk_rope_head_dim ", latent.rope_dim));
    }
    return LatentSharedBytes(layout.dtype, stored);
  }
  if (!IsAttentionHeadDim(stored)) {
    return absl::UnimplementedError(absl::StrCat(
        "head_dim: the cuda backend has no kernel for ", config.head_dim));
  }
  const int32_t group = config.num_heads / config.num_kv_heads;
  if (group > kTileQueries) {
    return absl::UnimplementedError(absl::StrCat(
        "num_key_value_heads: ", group,
        " heads share one; the cuda backend takes at most ", kTileQueries));
  }
  return AttentionSharedBytes(layout.dtype, stored);
}

}  // namespace

absl::Status CheckModel(const ModelConfig& config, const KvLayout& layout,
                        int32_t ranks, const DeviceProperties& device) {
  BATON_RETURN_IF_ERROR(CheckShards(config, ranks));
  BATON_ASSIGN_OR_RETURN(const int64_t shared_bytes,
                         CheckAttention(config, layout));
  if (shared_bytes > device.shared_bytes_per_block) {
    return absl::FailedPreconditionError(absl::StrCat(
        config.IsLatent() ? "kv_lora_rank: keys of " : "head_dim: ",
        config.head_dim, " elements take ", shared_bytes,
        " bytes of a block's memory; CUDA device 0 (", device.name, ") has ",
        device.shared_bytes_per_block,
        layout.dtype == KvDtype::kBf16 ? "; kv_dtype int8 takes less" : ""));
  }
  return absl::OkStatus();
}

}  // namespace baton::engine::cuda
