#include "engine/cuda/shard.h"

#include "absl/strings/str_cat.h"
#include "engine/cuda/experts.h"

namespace baton::engine::cuda {

absl::Status CheckShards(const ModelConfig& config, int32_t ranks) {
  if (config.experts.passed() > kMostExpertsPerToken) {
    return absl::UnimplementedError(
        absl::StrCat("num_experts_per_tok: the cuda backend takes at most ",
                     kMostExpertsPerToken, " with shared ones (the model has ",
                     config.experts.passed(), ")"));
  }
  if (config.experts.all() > kMostExperts) {
    return absl::UnimplementedError(
        absl::StrCat("experts: the cuda backend takes at most ", kMostExperts,
                     " in a layer with shared ones (the model has ",
                     config.experts.all(), ")"));
  }
  if (config.experts.groups > kMostExpertGroups) {
    return absl::UnimplementedError(absl::StrCat(
        "n_group: the cuda backend takes at most ", kMostExpertGroups,
        " groups of experts (the model has ", config.experts.groups, ")"));
  }
  struct Field {
    const char* name;
    int32_t value;
  };
  const Field fields[] = {
      config.IsLatent() ? Field{"num_attention_heads", config.num_heads}
                        : Field{"num_key_value_heads", config.num_kv_heads},
      {"hidden_size", config.hidden_size},
      {"intermediate_size", config.intermediate_size},
      {config.architecture == Architecture::kMixtral ? "intermediate_size"
                                                     : "moe_intermediate_size",
       config.experts.intermediate_size}};
  for (const auto& field : fields) {
    if (field.value % ranks == 0) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("tensor_parallel: ", ranks, " devices cannot share ",
                     field.name, " ", field.value, " equally"));
  }
  return absl::OkStatus();
}

}  // namespace baton::engine::cuda
