#include "absl/status/status.h"
#include "engine/cuda/backend.h"

namespace baton::engine::cuda {

absl::StatusOr<std::unique_ptr<Engine>> CreateCudaEngine(const EngineOptions&) {
  return absl::UnimplementedError(
      "backend: \"cuda\" is not in this build; no CUDA Toolkit was found when "
      "it was configured, or BATON_CUDA was OFF");
}

}  // namespace baton::engine::cuda
