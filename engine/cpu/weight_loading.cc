#include "engine/cpu/weight_loading.h"

#include <chrono>
#include <memory>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/log.h"
#include "common/status_macros.h"
#include "engine/cpu/packed_model.h"
#include "engine/model_identity.h"
#include "engine/quantize_weights.h"
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

}  // namespace

absl::StatusOr<LoadedWeights> MapModel(const EngineOptions& options,
                                       const ModelConfig& config) {
  const std::string& dir = options.model_dir;
  BATON_ASSIGN_OR_RETURN(PackedManifest manifest, ReadPackedManifest(dir));
  const std::string file = absl::StrCat(dir, "/", kPackedManifestFile);
  if (options.weights != "auto" &&
      options.weights != WeightDtypeName(manifest.dtype)) {
    return absl::InvalidArgumentError(absl::StrCat(
        file, ": weights are ", WeightDtypeName(manifest.dtype), ", not ",
        options.weights, " as asked for; \"auto\" takes them as they are"));
  }
  if (manifest.config != ConfigIdentity(config)) {
    return absl::InvalidArgumentError(
        absl::StrCat(file,
                     ": config was another one when the weights were "
                     "packed; quantize the model again with this "
                     "config.json"));
  }
  LoadedWeights loaded;
  loaded.identity = std::move(manifest.identity);
  BATON_ASSIGN_OR_RETURN(loaded.weights,
                         MapPackedWeights(dir, config, manifest.dtype));
  return loaded;
}

absl::StatusOr<LoadedWeights> PackModel(const std::string& model,
                                        const ModelConfig& config,
                                        std::optional<WeightDtype> asked,
                                        ThreadTeam& team,
                                        LoadProgress progress) {
  if (IsPackedModel(model)) {
    return absl::InvalidArgumentError(absl::StrCat(
        model,
        ": its weights are packed; take the model that it was made "
        "from"));
  }
  BATON_ASSIGN_OR_RETURN(const ModelWeights weights,
                         LoadModelWeights(model, config));
  const absl::Status mxfp4 = CheckMxfp4(weights);
  if (asked == WeightDtype::kMxfp4) BATON_RETURN_IF_ERROR(mxfp4);
  const WeightDtype dtype =
      asked.value_or(mxfp4.ok() ? WeightDtype::kMxfp4 : WeightDtype::kBf16);
  LoadedWeights loaded;
  loaded.identity =
      QuantizedIdentity(ModelIdentity(config, weights), WeightDtypeName(dtype));
  BATON_ASSIGN_OR_RETURN(loaded.weights,
                         PackWeights(config, weights, dtype, team, progress));
  return loaded;
}

absl::StatusOr<LoadedWeights> LoadCpuWeights(const EngineOptions& options,
                                             const ModelConfig& config,
                                             ThreadTeam& team) {
  if (IsPackedModel(options.model_dir)) return MapModel(options, config);
  ProgressLog log(options.model_dir);
  return PackModel(options.model_dir, config, ParseWeightDtype(options.weights),
                   team, [&](double share) { log(share); });
}

absl::StatusOr<std::unique_ptr<const CpuWeights>> LoadDraftWeights(
    const EngineOptions& options, const ModelConfig& config,
    const CpuWeights& weights, ThreadTeam& team) {
  if (options.draft_weights.empty()) return nullptr;
  const std::optional<WeightDtype> dtype =
      ParseWeightDtype(options.draft_weights);
  if (dtype != WeightDtype::kInt8 && dtype != WeightDtype::kInt4) {
    return absl::InvalidArgumentError(absl::StrCat(
        "draft_weights: int8 or int4, not ", options.draft_weights));
  }
  ProgressLog log(
      absl::StrCat(options.model_dir, " as ", options.draft_weights));
  absl::StatusOr<LoadedWeights> loaded =
      PackModel(options.model_dir, config, dtype, team,
                [&](double share) { log(share); });
  if (!loaded.ok()) {
    return absl::Status(
        loaded.status().code(),
        absl::StrCat("draft_weights: ", loaded.status().message()));
  }
  if (loaded->weights.matrix_bytes() >= weights.matrix_bytes()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "draft_weights: ", options.draft_weights, " takes ",
        loaded->weights.matrix_bytes(),
        " bytes, no less than the weights themselves (",
        WeightDtypeName(weights.dtype), ", ", weights.matrix_bytes(), ")"));
  }
  return std::make_unique<const CpuWeights>(std::move(loaded->weights));
}

}  // namespace baton::engine::cpu
