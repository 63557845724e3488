#include <utility>

#include "common/status_macros.h"
#include "engine/cuda/backend.h"
#include "engine/cuda/cuda_engine.h"

namespace baton::engine::cuda {

absl::StatusOr<std::unique_ptr<Engine>> CreateCudaEngine(
    const EngineOptions& options) {
  BATON_ASSIGN_OR_RETURN(std::unique_ptr<CudaEngine> engine,
                         CudaEngine::Create(options));
  return std::unique_ptr<Engine>(std::move(engine));
}

}  // namespace baton::engine::cuda
