// Whether a device has code of this build's kernels.
#include "engine/cuda/target/stream_handle.h"

namespace baton::engine::cuda {
namespace {

__global__ void Nothing() {}

}  // namespace

cudaError_t KernelsRunHere() {
  cudaFuncAttributes attributes;
  return cudaFuncGetAttributes(&attributes,
                               reinterpret_cast<const void*>(&Nothing));
}

}  // namespace baton::engine::cuda
