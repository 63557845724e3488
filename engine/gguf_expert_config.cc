// Names of keys, and what files leave unsaid, are llama.cpp's.
#include "engine/gguf_expert_config.h"

#include <cstdint>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/status_macros.h"
#include "engine/model_limits.h"

namespace baton::engine {
namespace {

class SharingExpertsReader final {
 public:
  SharingExpertsReader(const gguf::GgufFile& file, const std::string& prefix,
                       ModelConfig& config)
      : file_(file), prefix_(prefix), config_(config) {}

  // What GLM's and DeepSeek's mixtures have beside others'.
  absl::Status Read() {
    constexpr int64_t kSoftmax = 1;
    constexpr int64_t kSigmoid = 2;
    ExpertsConfig& experts = config_.experts;
    // How a model scores is a part of which one it is: gguf_summary.cc.
    const bool softmax = config_.architecture == Architecture::kDeepseekV2;
    const int64_t known = softmax ? kSoftmax : kSigmoid;
    BATON_ASSIGN_OR_RETURN(
        const int64_t gating,
        file_.IntegerOr(Key("expert_gating_func"), known, 0, 1 << 10));
    if (gating != 0 && gating != known) {
      return absl::UnimplementedError(absl::StrCat(
          file_.path(), ": ", Key("expert_gating_func"), " is ", gating,
          softmax ? "; Baton knows 1, softmax, and 2, sigmoid"
                  : "; Baton knows 2, sigmoid"));
    }
    if (!softmax) {
      experts.score = ExpertsConfig::Score::kSigmoid;
      experts.choice_bias = true;
    }
    BATON_RETURN_IF_ERROR(ReadGroups());
    BATON_ASSIGN_OR_RETURN(
        experts.shared,
        file_.IntegerOr(Key("expert_shared_count"), 0, 0, kMaxExperts));
    const std::string scale = Key("expert_weights_scale");
    if (file_.Has(scale)) {
      BATON_ASSIGN_OR_RETURN(experts.scale, file_.Number(scale, 1e-6, 1e6));
    }
    const std::string norm = Key("expert_weights_norm");
    experts.normalized = false;
    if (file_.Has(norm)) {
      BATON_ASSIGN_OR_RETURN(experts.normalized, file_.Bool(norm));
    }
    BATON_ASSIGN_OR_RETURN(const int64_t dense,
                           file_.IntegerOr(Key("leading_dense_block_count"), 0,
                                           0, config_.num_layers - 1));
    if (dense == 0) return absl::OkStatus();
    config_.layer_has_experts.assign(config_.num_layers, true);
    for (int64_t i = 0; i < dense; ++i) config_.layer_has_experts[i] = false;
    BATON_ASSIGN_OR_RETURN(
        config_.intermediate_size,
        file_.Integer(Key("feed_forward_length"), 1, kMaxIntermediateSize));
    return absl::OkStatus();
  }

 private:
  std::string Key(absl::string_view name) const {
    return absl::StrCat(prefix_, name);
  }

  // Groups that experts are chosen from; files from before there were such keys
  // mean one.
  absl::Status ReadGroups() {
    ExpertsConfig& experts = config_.experts;
    BATON_ASSIGN_OR_RETURN(
        const int64_t groups,
        file_.IntegerOr(Key("expert_group_count"), 0, 0, kMaxExperts));
    if (groups <= 1) return absl::OkStatus();
    BATON_ASSIGN_OR_RETURN(
        const int64_t chosen,
        file_.IntegerOr(Key("expert_group_used_count"), groups, 1, groups));
    const int64_t of_group = experts.count / groups;
    if (experts.count % groups != 0 || of_group < 2 ||
        chosen * of_group < experts.per_token) {
      return file_.Invalid(
          Key("expert_group_count"),
          absl::StrCat("is ", groups, ", it must divide expert_count (",
                       experts.count, ") into groups of two or more, of which ",
                       "expert_group_used_count (", chosen,
                       ") have those that are used (", experts.per_token, ")"));
    }
    if (chosen == groups) return absl::OkStatus();
    experts.groups = static_cast<int32_t>(groups);
    experts.chosen_groups = static_cast<int32_t>(chosen);
    return absl::OkStatus();
  }

  const gguf::GgufFile& file_;
  const std::string& prefix_;
  ModelConfig& config_;
};

}  // namespace

absl::Status ReadGgufSharingExperts(const gguf::GgufFile& file,
                                    const std::string& prefix,
                                    ModelConfig& config) {
  return SharingExpertsReader(file, prefix, config).Read();
}

}  // namespace baton::engine
