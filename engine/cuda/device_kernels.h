// Which of the kernels that not all devices have a device may use.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/cuda/device_runtime.h"
#include "engine/cuda/device_weights.h"
#include "engine/cuda/matmul.h"
#include "engine/cuda/weight_tiles.h"
#include "engine/kv_layout.h"

namespace baton::engine::cuda {

// Those that the device and the build have.
DeviceKernels KernelsOf(const DeviceProperties& device);

// What kernels are tried with: what an engine will use them for.
struct KernelTrials {
  std::vector<WeightFormat> formats = {WeightFormat::kBf16};
  int32_t stored_head_dim = 128;
  KvDtype kv_dtype = KvDtype::kBf16;
  int32_t repeats = 1;
  bool experts = false;  // products with experts, too
};

// Of an engine with these weights and this KV.
KernelTrials TrialsFor(const DeviceWeights& weights, const KvLayout& layout);

// Of these, the ones that give the bits of the kernels that all devices have:
// each is tried several times with random numbers, in a small product or
// prompt, so that a device whose tensor cores add otherwise (wgmma and mma.sync
// are different instructions) does without, and answers stay the same
// everywhere. Logs what it leaves out. Takes some milliseconds, and waits for
// the stream; ResourceExhausted without a MB or so of the device's memory.
absl::StatusOr<DeviceKernels> KernelsThatAgree(const DeviceKernels& kernels,
                                               const KernelTrials& trials,
                                               Stream& stream);

}  // namespace baton::engine::cuda
