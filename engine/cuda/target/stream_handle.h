// What stands behind Stream::handle() where the device is CUDA's. For the
// files that call CUDA.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "engine/cuda/device_runtime.h"

namespace baton::engine::cuda {

struct StreamHandle {
  cudaStream_t native = nullptr;
  bool early_kernels = false;
  bool most_block_memory = false;
};

// Has the thread's device give blocks of the kernel so many bytes of memory,
// where that is more than any launch before asked for: never less, as graphs
// that were recorded keep what they were launched with. Any thread; aborts with
// CUDA's reason and the kernel's name.
void AllowSharedBytes(const void* kernel, int64_t bytes, const char* name);

// What the thread's device would run of this build's kernels: the architecture
// that their code was written for, such as 90; or CUDA's reason why it cannot.
cudaError_t KernelsHere(int* architecture);

}  // namespace baton::engine::cuda
