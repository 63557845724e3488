// From a model on disk to packed weights: packs what it reads, or maps what
// `baton quantize` packed before. Called once, by the thread that makes the
// engine.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "engine/cpu/cpu_weights.h"
#include "engine/cpu/thread_team.h"
#include "engine/engine_factory.h"
#include "engine/model_config.h"

namespace baton::engine::cpu {

struct LoadedWeights {
  CpuWeights weights;
  // See Engine::model_identity.
  std::string identity;
};

// Packs the weights of `model`, whatever it is but a directory that holds them
// packed (InvalidArgument). Without a dtype it is kMxfp4 where that can be
// (CheckMxfp4), else kBf16. Other errors as CreateEngine.
absl::StatusOr<LoadedWeights> PackModel(const std::string& model,
                                        const ModelConfig& config,
                                        std::optional<WeightDtype> dtype,
                                        ThreadTeam& team,
                                        LoadProgress progress);

// Maps a directory that holds weights packed (IsPackedModel). InvalidArgument
// where options.weights asks for others than it holds, or `config` is another
// than they were packed with. Other errors as CreateEngine.
absl::StatusOr<LoadedWeights> MapModel(const EngineOptions& options,
                                       const ModelConfig& config);

// Packs, or maps a directory that holds weights packed. Logs how far it is when
// that takes longer than a second. Errors as CreateEngine.
absl::StatusOr<LoadedWeights> LoadCpuWeights(const EngineOptions& options,
                                             const ModelConfig& config,
                                             ThreadTeam& team);

// Packs them once more, as options.draft_weights says, beside `weights`, which
// have to be larger (InvalidArgument). Null where nothing is asked for.
absl::StatusOr<std::unique_ptr<const CpuWeights>> LoadDraftWeights(
    const EngineOptions& options, const ModelConfig& config,
    const CpuWeights& weights, ThreadTeam& team);

}  // namespace baton::engine::cpu
