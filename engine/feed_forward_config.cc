#include "engine/feed_forward_config.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "engine/latent_config.h"
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

// Groups of neighbours that experts are chosen from.
void ReadGroups(JsonFields& fields, int32_t default_groups,
                int32_t default_chosen, ExpertsConfig& experts) {
  experts.groups = fields.Int("n_group", default_groups, 1, kMaxExperts);
  experts.chosen_groups =
      fields.Int("topk_group", default_chosen, 1, kMaxExperts);
  if (!fields.status().ok()) return;
  if (experts.count % experts.groups != 0) {
    return fields.FailField(
        "n_group", experts.groups,
        absl::StrCat("a divisor of n_routed_experts (", experts.count, ")"));
  }
  const int32_t of_group = experts.count / experts.groups;
  // More than there are is another error.
  const int32_t wanted = std::min(experts.per_token, experts.count);
  if (experts.chosen_groups > experts.groups ||
      experts.chosen_groups * of_group < wanted) {
    return fields.FailField(
        "topk_group", experts.chosen_groups,
        absl::StrCat("at most n_group (", experts.groups,
                     "), and so many that they have num_experts_per_tok (",
                     experts.per_token, ") experts"));
  }
  // The score of a group is the sum of its best two.
  if (experts.score == ExpertsConfig::Score::kSigmoid && experts.groups > 1 &&
      of_group < 2) {
    return fields.FailField("n_group", experts.groups,
                            "so few that each has two experts");
  }
  if (experts.chosen_groups == experts.groups) {
    experts.groups = experts.chosen_groups = 1;
  }
}

// As DeepSeek-V2 says it: by `topk_method`.
void ReadV2Choice(JsonFields& fields, ExpertsConfig& experts) {
  const std::string method = fields.String("topk_method", "greedy");
  const bool groups = method == "group_limited_greedy";
  // The first files spell it so.
  const bool greedy = method == "greedy" || method == "gready";
  if (fields.status().ok() && !groups && !greedy) {
    fields.Fail(absl::UnimplementedError(absl::StrCat(
        fields.Where("topk_method"), " is \"", method,
        "\"; Baton knows \"greedy\" and \"group_limited_greedy\"")));
  }
  if (groups) ReadGroups(fields, 1, 1, experts);
}

// The value of a field that says how experts are scored, which must be the
// architecture's.
void CheckName(JsonFields& fields, const char* name, const char* known) {
  const std::string value = fields.String(name, known);
  if (!fields.status().ok() || value == known) return;
  fields.Fail(absl::UnimplementedError(absl::StrCat(
      fields.Where(name), " is \"", value, "\"; Baton knows \"", known, "\"")));
}

// Which layers have experts: all but the first few, unless GLM's files list it.
std::vector<bool> LayersBehindDense(JsonFields& fields, int32_t num_layers,
                                    int32_t default_dense) {
  std::vector<bool> has(num_layers, true);
  const json* const types = fields.Find("mlp_layer_types");
  if (types == nullptr) {
    const int32_t dense =
        fields.Int("first_k_dense_replace", default_dense, 0, kMaxLayers);
    std::fill_n(has.begin(), std::min(dense, num_layers), false);
    return has;
  }
  if (!types->is_array() || types->size() != static_cast<size_t>(num_layers)) {
    fields.FailField(
        "mlp_layer_types", *types,
        absl::StrCat("a list of num_hidden_layers (", num_layers, ") strings"));
    return has;
  }
  for (int32_t i = 0; i < num_layers; ++i) {
    has[i] = (*types)[i] == "sparse";
    if (!has[i] && (*types)[i] != "dense") {
      fields.FailField(absl::StrCat("mlp_layer_types[", i, "]"), (*types)[i],
                       "\"dense\" or \"sparse\"");
    }
  }
  return has;
}

// What transformers has for fields that files leave out.
struct SharedExpertDefaults {
  int32_t count, per_token, intermediate, shared, groups, chosen_groups, dense;
  double scale;
};
SharedExpertDefaults DefaultsOf(Architecture architecture) {
  switch (architecture) {
    case Architecture::kDeepseekV2:
      return {64, 6, 1407, 2, 1, 1, 0, 1.0};
    case Architecture::kDeepseekV3:
      return {256, 8, 2048, 1, 8, 4, 3, 2.5};
    case Architecture::kGlm4MoeLite:
      return {64, 4, 1536, 1, 1, 1, 1, 1.8};
    default:
      return {128, 8, 1408, 1, 1, 1, 1, 1.0};  // GLM-4.5
  }
}

// Of GLM's and DeepSeek's mixtures; returns which layers have experts.
std::vector<bool> ReadSharingExperts(JsonFields& fields,
                                     const ModelConfig& config,
                                     ExpertsConfig& experts) {
  const SharedExpertDefaults defaults = DefaultsOf(config.architecture);
  const bool v2 = config.architecture == Architecture::kDeepseekV2;
  experts.count =
      fields.Int("n_routed_experts", defaults.count, 1, kMaxExperts);
  experts.per_token =
      fields.Int("num_experts_per_tok", defaults.per_token, 1, kMaxExperts);
  experts.intermediate_size = fields.Int(
      "moe_intermediate_size", defaults.intermediate, 1, kMaxIntermediateSize);
  // Null: none.
  experts.shared =
      fields.IsNull("n_shared_experts")
          ? 0
          : fields.Int("n_shared_experts", defaults.shared, 0, kMaxExperts);
  experts.normalized = fields.Bool("norm_topk_prob", !v2);
  experts.scale =
      fields.Number("routed_scaling_factor", defaults.scale, 1e-6, 1e6);
  if (v2) {
    CheckName(fields, "scoring_func", "softmax");
    if (experts.normalized) {
      fields.Fail(absl::UnimplementedError(absl::StrCat(
          fields.Where("norm_topk_prob"), " is true; Baton knows false with ",
          ArchitectureName(config.architecture))));
    }
    ReadV2Choice(fields, experts);
  } else {
    CheckName(fields, "scoring_func", "sigmoid");
    CheckName(fields, "topk_method", "noaux_tc");
    experts.score = ExpertsConfig::Score::kSigmoid;
    experts.choice_bias = true;
    ReadGroups(fields, defaults.groups, defaults.chosen_groups, experts);
  }
  if (const int32_t step = fields.Int("moe_layer_freq", 1, 1, kMaxLayers);
      step != 1) {
    fields.Fail(absl::UnimplementedError(absl::StrCat(
        fields.Where("moe_layer_freq"), " is ", step, "; Baton knows 1")));
  }
  return LayersBehindDense(fields, config.num_layers, defaults.dense);
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

bool HasSharedExperts(Architecture architecture) {
  return architecture == Architecture::kGlm4Moe || IsLatent(architecture);
}

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
             HasSharedExperts(config.architecture)) {
    std::vector<bool> has;
    if (HasSharedExperts(config.architecture)) {
      // Null, of DeepSeek-V2's: a model without experts.
      if (!fields.IsNull("n_routed_experts")) {
        has = ReadSharingExperts(fields, config, experts);
      }
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
