// The CUDA backend, where the build has it. CMake picks the file.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "engine/engine.h"
#include "engine/engine_factory.h"

namespace baton::engine::cuda {

// As CudaEngine::Create; Unimplemented in a build without CUDA.
absl::StatusOr<std::unique_ptr<Engine>> CreateCudaEngine(
    const EngineOptions& options);

}  // namespace baton::engine::cuda
