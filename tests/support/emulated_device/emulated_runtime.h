// The runtime of the device that the CPU plays (engine/cuda/device_runtime.h).
// What is given to a stream is recorded into a graph, or done when somebody
// waits for it and not before, as late as a real device may do it: who reads
// without waiting finds what was there before, and who overwrites too early is
// read. Asking an event whether it is done does one piece of the work.
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
