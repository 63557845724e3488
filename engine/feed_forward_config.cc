#include "engine/feed_forward_config.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/model_limits.h"

namespace baton::engine {
namespace {

using nlohmann::json;

// Which layers of a Qwen3 model have experts.
std::vector<bool> ReadLayerHasExperts(JsonFields& fields, int32_t num_layers) {
  const int32_t step = fields.Int("decoder_sparse_step", 1, 1, kMaxLayers);
  std::vector<bool> has(num_layers, true);
  for (int32_t i = 0; i < num_layers; ++i) has[i] = (i + 1) % step == 0;
  const json* const without = fields.Find("mlp_only_layers");
  if (without == nullptr) return has;
  const json list = without->is_array() ? *without : json::array({*without});
  for (const json& entry : list) {
    int64_t layer = 0;
    if (!JsonInt(entry, 0, kMaxLayers, &layer)) {
      fields.FailField("mlp_only_layers", *without, "a list of layers");
      return has;
    }
    // transformers asks only whether a layer is in the list.
    if (layer < num_layers) has[layer] = false;
  }
  return has;
}

}  // namespace

void ReadFeedForward(JsonFields& fields, ModelConfig& config) {
  ExpertsConfig& experts = config.experts;
  bool all_layers = false;
  if (config.architecture == Architecture::kMixtral) {
    experts.count = fields.Int("num_local_experts", 8, 1, kMaxExperts);
    experts.per_token = fields.Int("num_experts_per_tok", 2, 1, kMaxExperts);
    experts.intermediate_size =
        fields.RequiredInt("intermediate_size", 1, kMaxIntermediateSize);
    all_layers = true;
  } else if (config.architecture == Architecture::kQwen3Moe) {
    experts.count = fields.Int("num_experts", 128, 0, kMaxExperts);
    experts.per_token = fields.Int("num_experts_per_tok", 8, 1, kMaxExperts);
    experts.intermediate_size =
        fields.Int("moe_intermediate_size", 768, 1, kMaxIntermediateSize);
    experts.normalized = fields.Bool("norm_topk_prob", false);
    std::vector<bool> has = ReadLayerHasExperts(fields, config.num_layers);
    const auto with = std::count(has.begin(), has.end(), true);
    if (with == 0) experts.count = 0;
    all_layers = experts.count > 0 && with == config.num_layers;
    if (experts.count == 0) experts = ExpertsConfig{};
    if (experts.count > 0 && !all_layers) {
      config.layer_has_experts = std::move(has);
    }
  }
  if (!all_layers) {
    config.intermediate_size =
        fields.RequiredInt("intermediate_size", 1, kMaxIntermediateSize);
  }
  if (!fields.status().ok() || experts.count == 0) return;
  if (experts.per_token > experts.count) {
    fields.FailField(
        "num_experts_per_tok", experts.per_token,
        absl::StrCat("at most the number of experts (", experts.count, ")"));
  }
  if (int64_t{experts.count} * config.num_layers > kMaxModelExperts) {
    fields.FailField(
        "num_hidden_layers", config.num_layers,
        absl::StrCat("at most ", kMaxModelExperts / experts.count,
                     " with so many experts (", experts.count, ")"));
  }
}

}  // namespace baton::engine
