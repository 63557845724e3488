#include "engine/cuda/model_check.h"

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "engine/cuda/attention.h"
#include "engine/cuda/shard.h"

namespace baton::engine::cuda {

absl::Status CheckModel(const ModelConfig& config, const KvLayout& layout,
                        int32_t ranks, const DeviceProperties& device) {
  const ExpertsConfig& experts = config.experts;
  if (config.IsLatent() || experts.groups > 1 || experts.shared > 1) {
    return absl::UnimplementedError(absl::StrCat(
        ArchitectureName(config.architecture), ": the cuda backend knows ",
        "neither latent attention nor groups of experts nor several shared"));
  }
  BATON_RETURN_IF_ERROR(CheckShards(config, ranks));
  if (!IsAttentionHeadDim(layout.stored_head_dim())) {
    return absl::UnimplementedError(absl::StrCat(
        "head_dim: the cuda backend has no kernel for ", config.head_dim));
  }
  const int64_t shared_bytes =
      AttentionSharedBytes(layout.dtype, layout.stored_head_dim());
  if (shared_bytes > device.shared_bytes_per_block) {
    return absl::FailedPreconditionError(absl::StrCat(
        "head_dim: ", config.head_dim, " elements take ", shared_bytes,
        " bytes of a block's memory; CUDA device 0 (", device.name, ") has ",
        device.shared_bytes_per_block,
        layout.dtype == KvDtype::kBf16 ? "; kv_dtype int8 takes less" : ""));
  }
  const int32_t group = config.num_heads / config.num_kv_heads;
  if (group > kTileQueries) {
    return absl::UnimplementedError(absl::StrCat(
        "num_key_value_heads: ", group,
        " heads share one; the cuda backend takes at most ", kTileQueries));
  }
  return absl::OkStatus();
}

}  // namespace baton::engine::cuda
