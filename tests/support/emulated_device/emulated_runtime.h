// The runtime of the device that the CPU plays (engine/cuda/device_runtime.h).
// What is given to a stream is recorded into a graph, or done when somebody
// waits for it and not before, as late as a real device may do it: who reads
// without waiting finds what was there before, and who overwrites too early is
// read. Asking an event whether it is done does one piece of the work.
#pragma once

#include <cstdint>
#include <functional>

#include "absl/time/time.h"
#include "engine/cuda/device_runtime.h"

namespace baton::engine::cuda::emulated {

void RunOrRecord(StreamHandle* stream, std::function<void()> work);

// Launches of graphs and of kernels outside of graphs, since the program began.
struct LaunchCounts {
  int64_t graphs = 0;
  int64_t others = 0;
};
LaunchCounts Launches();

// From now on a thread that takes or gives back memory first lets others be
// faster, for so long at most. It must not find, then or otherwise, that a
// device waits for the thread's own (RankGroup): CUDA may wait for that device.
void SetPatience(absl::Duration patience);

// So many kernels more, or fewer, wait on devices of this process for another
// process. Meanwhile memory must not be taken or given back. Any thread.
void AddWaitsForPeers(int change);

// So many allocations of pinned memory more succeed; negative: all.
void SetPinnedAllocations(int count);

// Takes so many bytes of a device, or gives them back, which nobody sees but
// who asks how many are free.
void TakeBytes(int32_t device, int64_t bytes);

// So many graphs more find memory; negative: all.
void SetGraphs(int count);

// Whether ReachMemoryOf was asked, since the program began.
bool Reaches(int32_t from, int32_t to);

}  // namespace baton::engine::cuda::emulated
