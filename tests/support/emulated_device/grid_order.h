// In which order the blocks of a grid run, one cluster after another: a device
// may run them in any, so that nothing should depend on it.
#pragma once

#include <cstdint>

#include "absl/functional/function_ref.h"
#include "engine/cuda/launch_shape.h"

namespace baton::engine::cuda::emulated {

// Where the blocks of a cluster are in the grid; x is that of the first.
struct ClusterPlace {
  uint32_t x = 0;
  uint32_t y = 0;
  uint32_t z = 0;
};

// Calls `run` for each cluster, from the first to the last, or the other way
// round.
inline void ForEachCluster(const LaunchShape& shape, bool falling,
                           absl::FunctionRef<void(const ClusterPlace&)> run) {
  const uint64_t in_row = shape.x / shape.cluster;
  const uint64_t count = in_row * shape.y * shape.z;
  for (uint64_t i = 0; i < count; ++i) {
    const uint64_t index = falling ? count - 1 - i : i;
    run({static_cast<uint32_t>(index % in_row * shape.cluster),
         static_cast<uint32_t>(index / in_row % shape.y),
         static_cast<uint32_t>(index / in_row / shape.y)});
  }
}

}  // namespace baton::engine::cuda::emulated
