// The runtime of the device that the CPU plays (engine/cuda/device_runtime.h).
// What is given to a stream is done at once, or recorded into a graph.
#pragma once

#include <cstdint>
#include <functional>

#include "engine/cuda/device_runtime.h"

namespace baton::engine::cuda::emulated {

void RunOrRecord(StreamHandle* stream, std::function<void()> work);

// Launches of graphs and of kernels outside of graphs, since the program began.
struct LaunchCounts {
  int64_t graphs = 0;
  int64_t others = 0;
};
LaunchCounts Launches();

}  // namespace baton::engine::cuda::emulated
