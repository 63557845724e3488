#include "engine/cpu/weight_loading.h"

#include <chrono>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/log.h"
#include "common/status_macros.h"
#include "engine/model_identity.h"
#include "engine/weights.h"

namespace baton::engine::cpu {
namespace {

// Logs a line per second.
class ProgressLog {
 public:
  explicit ProgressLog(std::string what) : what_(std::move(what)) {}

  void operator()(double share) {
    const auto now = std::chrono::steady_clock::now();
    if (now < next_ || share >= 1.0) return;
    next_ = now + std::chrono::seconds(1);
    LOG(INFO) << "packing " << what_ << ": " << static_cast<int>(100 * share)
              << " %";
  }

 private:
  const std::string what_;
  std::chrono::steady_clock::time_point next_ =
      std::chrono::steady_clock::now() + std::chrono::seconds(1);
};

// Weights that were rounded further are other weights.
std::string IdentityOf(const std::string& model, WeightDtype dtype) {
  if (dtype == WeightDtype::kBf16) return model;
  return absl::StrCat(model, "-", WeightDtypeName(dtype));
}

}  // namespace

absl::StatusOr<LoadedWeights> LoadCpuWeights(const EngineOptions& options,
                                             const ModelConfig& config,
                                             ThreadTeam& team) {
  const WeightDtype dtype =
      ParseWeightDtype(options.weights).value_or(WeightDtype::kBf16);
  BATON_ASSIGN_OR_RETURN(const ModelWeights weights,
                         LoadModelWeights(options.model_dir, config));
  LoadedWeights loaded;
  loaded.identity = IdentityOf(ModelIdentity(config, weights), dtype);
  ProgressLog log(options.model_dir);
  BATON_ASSIGN_OR_RETURN(loaded.weights,
                         PackWeights(config, weights, dtype, team,
                                     [&](double share) { log(share); }));
  return loaded;
}

}  // namespace baton::engine::cpu
