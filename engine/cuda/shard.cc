#include "engine/cuda/shard.h"

#include "absl/strings/str_cat.h"

namespace baton::engine::cuda {

absl::Status CheckShards(const ModelConfig& config, int32_t ranks) {
  if (config.experts.count > 0) {
    return absl::UnimplementedError(absl::StrCat(
        ArchitectureName(config.architecture), ": the cuda backend has no ",
        "mixtures of experts yet (the model has ", config.experts.count,
        " experts a layer)"));
  }
  const struct {
    const char* name;
    int32_t value;
  } fields[] = {{"num_key_value_heads", config.num_kv_heads},
                {"hidden_size", config.hidden_size},
                {"intermediate_size", config.intermediate_size}};
  for (const auto& field : fields) {
    if (field.value % ranks == 0) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("tensor_parallel: ", ranks, " devices cannot share ",
                     field.name, " ", field.value, " equally"));
  }
  return absl::OkStatus();
}

}  // namespace baton::engine::cuda
