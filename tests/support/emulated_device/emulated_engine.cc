#include "tests/support/emulated_device/emulated_engine.h"

#include <utility>

#include "common/status_macros.h"
#include "engine/cuda/cuda_engine.h"

namespace baton::engine::cuda {

absl::StatusOr<std::unique_ptr<Engine>> CreateEmulatedEngine(
    const EngineOptions& options) {
  ForwardPassOptions pass;
  pass.max_rows = 256;
  pass.span_bytes = 4 << 20;
  pass.logit_bytes = 1 << 20;
  pass.spare_bytes = 32 << 20;
  pass.kernel_trials = 1;
  BATON_ASSIGN_OR_RETURN(std::unique_ptr<CudaEngine> engine,
                         CudaEngine::Create(options, pass));
  return std::unique_ptr<Engine>(std::move(engine));
}

}  // namespace baton::engine::cuda
