// The shape of blocks of MatmulKernel::kFlow, for its plan and its kernel.
// Plain values for host and device.
#pragma once

#include <cstdint>

#include "engine/cuda/host_device.h"
#include "engine/cuda/weight_tiles.h"

namespace baton::engine::cuda {

// A block has eight warps, or 16, in groups of four, each with a tile of 16
// outputs; some of the last may have none, so that blocks are as many as
// multiprocessors have room for.
inline constexpr int32_t kFlowFewWarps = 8;
inline constexpr int32_t kFlowWarps = 16;

// All rows of the product. From so many on it is worth it.
inline constexpr int32_t kFlowRows = 64;
inline constexpr int32_t kFlowLeastRows = 17;

// Where a stage of activations may begin: eight rows of it are what bytes are
// swizzled in.
inline constexpr int32_t kFlowAlignment = 1024;

// Of a slice of 64 inputs: the activations, and the warps' weights.
inline constexpr int32_t kFlowRowBytes = kFlowRows * kSliceInputs * 2;
BATON_HOST_DEVICE constexpr int32_t FlowWeightBytes(WeightFormat format,
                                                    int32_t warps) {
  return warps * SliceBytes(format);
}

// Slices of weights on their way, or in use: 64 KB of eight warps or twice
// that, several times what keeps memory busy. Two blocks of eight warps fit on
// a multiprocessor.
BATON_HOST_DEVICE constexpr int32_t FlowStages(WeightFormat format) {
  return format == WeightFormat::kBf16 ? 4 : 5;
}
// Of activations one more, as all warps are to have read one before it is used
// again, and none should wait for another.
BATON_HOST_DEVICE constexpr int32_t FlowRowStages(WeightFormat format) {
  return FlowStages(format) + 1;
}

// Of a chunk's sums, float32, and of two chunks, which lie where stages were in
// the end.
BATON_HOST_DEVICE constexpr int32_t FlowSumBytes(int32_t warps) {
  return warps * kTileOutputs * kFlowRows * 4;
}
BATON_HOST_DEVICE constexpr int32_t FlowStagesBytes(WeightFormat format,
                                                    int32_t warps) {
  const int32_t stages = FlowStages(format) * FlowWeightBytes(format, warps) +
                         FlowRowStages(format) * kFlowRowBytes;
  return stages > 2 * FlowSumBytes(warps) ? stages : 2 * FlowSumBytes(warps);
}

// And two barriers of 8 bytes for each stage of activations.
BATON_HOST_DEVICE constexpr int64_t FlowSharedBytes(WeightFormat format,
                                                    int32_t warps) {
  return FlowStagesBytes(format, warps) + FlowRowStages(format) * 2 * 8 +
         kFlowAlignment;
}

}  // namespace baton::engine::cuda
