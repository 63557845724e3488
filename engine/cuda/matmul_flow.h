// The shape of blocks of MatmulKernel::kFlow, for its plan and its kernel.
// Plain values for host and device.
#pragma once

#include <cstdint>

#include "engine/cuda/host_device.h"
#include "engine/cuda/weight_tiles.h"

namespace baton::engine::cuda {

// Warps that multiply, each with a tile of 16 outputs: two groups of four. One
// more has weights and activations copied.
inline constexpr int32_t kFlowWarps = 8;
inline constexpr int32_t kFlowThreads = 32 * (kFlowWarps + 1);
inline constexpr int32_t kFlowOutputs = kFlowWarps * kTileOutputs;

// All rows of the product. From so many on it is worth it.
inline constexpr int32_t kFlowRows = 64;
inline constexpr int32_t kFlowLeastRows = 17;

// Where a stage may begin: eight rows of it are what bytes are swizzled in.
inline constexpr int32_t kFlowAlignment = 1024;

// A slice of 64 inputs: of the activations, and behind them of the tiles.
inline constexpr int32_t kFlowRowBytes = kFlowRows * kSliceInputs * 2;
BATON_HOST_DEVICE constexpr int32_t FlowSliceBytes(WeightFormat format) {
  return kFlowRowBytes + kFlowWarps * SliceBytes(format);
}
BATON_HOST_DEVICE constexpr int32_t FlowStageBytes(WeightFormat format) {
  return (FlowSliceBytes(format) + kFlowAlignment - 1) / kFlowAlignment *
         kFlowAlignment;
}

// 96 KB or so on their way, so that two blocks fit on a multiprocessor: several
// times what memory needs to be busy.
BATON_HOST_DEVICE constexpr int32_t FlowStages(WeightFormat format) {
  return (96 << 10) / FlowStageBytes(format);
}

// Of a chunk's sums, float32, which lie in the stages in the end.
inline constexpr int32_t kFlowSumBytes = kFlowOutputs * kFlowRows * 4;

// And two barriers of 8 bytes for each stage.
BATON_HOST_DEVICE constexpr int64_t FlowSharedBytes(WeightFormat format) {
  return FlowStages(format) * (FlowStageBytes(format) + 2 * 8) + kFlowAlignment;
}

}  // namespace baton::engine::cuda
