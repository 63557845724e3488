// The shape of blocks of MatmulKernel::kFlow, for its plan and its kernel.
// Plain values for host and device.
#pragma once

#include <cstdint>

#include "engine/cuda/host_device.h"
#include "engine/cuda/weight_tiles.h"

namespace baton::engine::cuda {

// Eight warps, each with a tile of 16 outputs: two groups of four.
inline constexpr int32_t kFlowWarps = 8;
inline constexpr int32_t kFlowThreads = 32 * kFlowWarps;
inline constexpr int32_t kFlowOutputs = kFlowWarps * kTileOutputs;

// All rows of the product. From so many on it is worth it.
inline constexpr int32_t kFlowRows = 64;
inline constexpr int32_t kFlowLeastRows = 17;

// Where a stage of activations may begin: eight rows of it are what bytes are
// swizzled in.
inline constexpr int32_t kFlowAlignment = 1024;

// Of a slice of 64 inputs: the activations, and the warps' weights.
inline constexpr int32_t kFlowRowBytes = kFlowRows * kSliceInputs * 2;
BATON_HOST_DEVICE constexpr int32_t FlowWeightBytes(WeightFormat format) {
  return kFlowWarps * SliceBytes(format);
}

// Slices of weights on their way, or in use: 96 KB with their activations, or
// more, several times what keeps memory busy. Two blocks fit on a
// multiprocessor.
BATON_HOST_DEVICE constexpr int32_t FlowStages(WeightFormat format) {
  return format == WeightFormat::kBf16 ? 4 : 5;
}
// Of activations one more, as all warps are to have read one before it is used
// again, and none should wait for another.
BATON_HOST_DEVICE constexpr int32_t FlowRowStages(WeightFormat format) {
  return FlowStages(format) + 1;
}

// Of a chunk's sums, float32, which lie where stages were in the end.
inline constexpr int32_t kFlowSumBytes = kFlowOutputs * kFlowRows * 4;

// And two barriers of 8 bytes for each stage of activations.
BATON_HOST_DEVICE constexpr int64_t FlowSharedBytes(WeightFormat format) {
  return FlowStages(format) * FlowWeightBytes(format) +
         FlowRowStages(format) * (kFlowRowBytes + 2 * 8) + kFlowAlignment;
}

}  // namespace baton::engine::cuda
