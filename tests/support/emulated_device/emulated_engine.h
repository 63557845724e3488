// The CUDA backend's engine on the device that the CPU plays.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "engine/engine.h"
#include "engine/engine_factory.h"

namespace baton::engine::cuda {

// With small buffers. Errors as CreateEngine, whatever options.backend is.
absl::StatusOr<std::unique_ptr<Engine>> CreateEmulatedEngine(
    const EngineOptions& options);

}  // namespace baton::engine::cuda
