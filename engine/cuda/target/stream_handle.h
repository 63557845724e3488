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
};

// Has the thread's device give blocks of the kernel so many bytes of memory,
// where that is more than any launch before asked for: never less, as graphs
// that were recorded keep what they were launched with. Any thread; aborts with
// CUDA's reason and the kernel's name.
void AllowSharedBytes(const void* kernel, int64_t bytes, const char* name);

// CUDA's reason why this build's kernels do not run on the thread's device;
// cudaSuccess if they do.
cudaError_t KernelsRunHere();

}  // namespace baton::engine::cuda
