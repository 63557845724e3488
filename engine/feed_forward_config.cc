#include "engine/feed_forward_config.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
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

// Experts are chosen within the best groups of them; one is no choice.
void RefuseGroups(JsonFields& fields) {
  for (const char* name : {"n_group", "topk_group"}) {
    const int32_t value = fields.Int(name, 1, 1, kMaxExperts);
    if (value == 1) continue;
    return fields.Fail(absl::UnimplementedError(
        absl::StrCat(fields.Where(name), " is ", value, "; Baton knows 1")));
  }
}

// Of GLM's mixtures; returns which layers have experts.
std::vector<bool> ReadGlmExperts(JsonFields& fields, int32_t num_layers,
                                 ExpertsConfig& experts) {
  experts.count = fields.Int("n_routed_experts", 128, 1, kMaxExperts);
  experts.per_token = fields.Int("num_experts_per_tok", 8, 1, kMaxExperts);
  experts.intermediate_size =
      fields.Int("moe_intermediate_size", 1408, 1, kMaxIntermediateSize);
  experts.shared = fields.Int("n_shared_experts", 1, 0, kMaxExperts);
  if (experts.shared > 1) {
    fields.Fail(absl::UnimplementedError(
        absl::StrCat(fields.Where("n_shared_experts"), " is ", experts.shared,
                     "; Baton knows 0 and 1")));
  }
  RefuseGroups(fields);
  experts.score = ExpertsConfig::Score::kSigmoid;
  experts.choice_bias = true;
  experts.normalized = fields.Bool("norm_topk_prob", true);
  experts.scale = fields.Number("routed_scaling_factor", 1.0, 1e-6, 1e6);
  const int32_t dense = fields.Int("first_k_dense_replace", 1, 0, kMaxLayers);
  std::vector<bool> has(num_layers, true);
  for (int32_t i = 0; i < std::min(dense, num_layers); ++i) has[i] = false;
  return has;
}

// Of gpt-oss's mixtures, which all layers have.
void ReadGptOssExperts(JsonFields& fields, ExpertsConfig& experts) {
  experts.count = fields.Int("num_local_experts", 128, 1, kMaxExperts);
  experts.per_token = fields.Int("num_experts_per_tok", 4, 1, kMaxExperts);
  experts.intermediate_size =
      fields.Int("intermediate_size", 2880, 1, kMaxIntermediateSize);
  experts.router_bias = true;
  experts.bias = true;
  experts.swiglu_limit = fields.Number("swiglu_limit", 7.0, 1e-3, 1e6);
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
  } else if (config.architecture == Architecture::kGptOss) {
    ReadGptOssExperts(fields, experts);
    all_layers = true;
  } else if (config.architecture == Architecture::kQwen3Moe ||
             config.architecture == Architecture::kGlm4Moe) {
    std::vector<bool> has;
    if (config.architecture == Architecture::kGlm4Moe) {
      has = ReadGlmExperts(fields, config.num_layers, experts);
    } else {
      experts.count = fields.Int("num_experts", 128, 0, kMaxExperts);
      experts.per_token = fields.Int("num_experts_per_tok", 8, 1, kMaxExperts);
      experts.intermediate_size =
          fields.Int("moe_intermediate_size", 768, 1, kMaxIntermediateSize);
      experts.normalized = fields.Bool("norm_topk_prob", false);
      has = ReadLayerHasExperts(fields, config.num_layers);
    }
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
  if (int64_t{experts.all()} * config.num_layers > kMaxModelExperts) {
    fields.FailField(
        "num_hidden_layers", config.num_layers,
        absl::StrCat("at most ", kMaxModelExperts / experts.all(),
                     " with so many experts (", experts.all(), ")"));
  }
}

}  // namespace baton::engine
