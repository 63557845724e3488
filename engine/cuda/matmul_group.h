// The shape of blocks of MatmulKernel::kGroup, for its plan and its kernel.
// Plain values for host and device.
#pragma once

#include <cstdint>

#include "engine/cuda/host_device.h"
#include "engine/cuda/weight_tiles.h"

namespace baton::engine::cuda {

// Two groups of four warps; a warp has a tile of 16 outputs.
inline constexpr int32_t kGroupThreads = 256;
inline constexpr int32_t kGroupOutputs = 128;
// Activations on their way, in slices of 64 inputs.
inline constexpr int32_t kGroupStages = 6;
// Where a stage may begin: eight rows of it are what bytes are swizzled in.
inline constexpr int32_t kGroupAlignment = 1024;

// Rows of a block. Weights with a scale per slice have more sums in registers.
BATON_HOST_DEVICE constexpr int32_t GroupRows(WeightFormat format) {
  return HasSliceScales(format) ? 64 : 128;
}

BATON_HOST_DEVICE constexpr int32_t GroupStageBytes(WeightFormat format) {
  return GroupRows(format) * kSliceInputs * 2;
}

BATON_HOST_DEVICE constexpr int64_t GroupSharedBytes(WeightFormat format) {
  return kGroupStages * GroupStageBytes(format) + kGroupAlignment;
}

}  // namespace baton::engine::cuda
