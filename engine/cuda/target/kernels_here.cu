// Which code of this build's kernels a device runs.
#include "engine/cuda/target/stream_handle.h"

namespace baton::engine::cuda {
namespace {

__global__ void Nothing() {}

}  // namespace

cudaError_t KernelsHere(int* architecture) {
  cudaFuncAttributes attributes;
  const cudaError_t error = cudaFuncGetAttributes(
      &attributes, reinterpret_cast<const void*>(&Nothing));
  if (error == cudaSuccess) *architecture = attributes.ptxVersion;
  return error;
}

}  // namespace baton::engine::cuda
