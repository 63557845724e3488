// What stands behind Stream::handle() where the device is CUDA's. For the
// files that call CUDA.
#pragma once

#include <cuda_runtime_api.h>

#include "engine/cuda/device_runtime.h"

namespace baton::engine::cuda {

struct StreamHandle {
  cudaStream_t native = nullptr;
  bool early_kernels = false;
};

}  // namespace baton::engine::cuda
