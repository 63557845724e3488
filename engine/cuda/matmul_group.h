// The shape of blocks of MatmulKernel::kGroup, for its plan and its kernel.
// Plain values for host and device.
#pragma once

#include <cstdint>

#include "engine/cuda/host_device.h"
#include "engine/cuda/weight_tiles.h"

namespace baton::engine::cuda {

// Warps that multiply, each with a tile of 16 outputs: two groups of four. Of a
// third group, which leaves its registers to them, one has activations copied.
inline constexpr int32_t kGroupWarps = 8;
inline constexpr int32_t kGroupThreads = 32 * (kGroupWarps + 4);
// Of a thread that multiplies, and of one that does not: 504 for three groups,
// of 512 that there are.
inline constexpr int kGroupRegisters = 240;
inline constexpr int kGroupFewRegisters = 24;
inline constexpr int32_t kGroupOutputs = kGroupWarps * kTileOutputs;
// Blocks with neighbouring outputs and the same rows: each copies its part of
// the activations for both.
inline constexpr int32_t kGroupCluster = 2;
// Rows of a block: one of the two.
inline constexpr int32_t kGroupFewRows = 128;
inline constexpr int32_t kGroupRows = 256;
// Where a stage may begin: eight rows of it are what bytes are swizzled in.
inline constexpr int32_t kGroupAlignment = 1024;

// Weights with a scale per slice have more sums in registers.
BATON_HOST_DEVICE constexpr int32_t GroupRows(WeightFormat format,
                                              int32_t rows) {
  return HasSliceGrids(format) || rows <= kGroupFewRows ? kGroupFewRows
                                                        : kGroupRows;
}

// Activations on their way, in slices of 64 inputs: 128 KB, or 96.
BATON_HOST_DEVICE constexpr int32_t GroupStages(int32_t rows) {
  return rows == kGroupRows ? 4 : 6;
}
BATON_HOST_DEVICE constexpr int32_t GroupStageBytes(int32_t rows) {
  return rows * kSliceInputs * 2;
}

// Row tiles of eight whose sums of the chunks so far a thread has in registers,
// as many as there are left: while the others are added up, in the block's
// memory, tensor cores wait.
BATON_HOST_DEVICE constexpr int32_t GroupKeptTiles(int32_t rows) {
  return rows == kGroupRows ? 9 : 0;
}
// Of the others, float32.
BATON_HOST_DEVICE constexpr int32_t GroupTotalBytes(int32_t rows) {
  return kGroupOutputs * (rows - 8 * GroupKeptTiles(rows)) * 4;
}
// The second group of warps begins with this stage's slice, so that the two do
// not come to the ends of chunks at the same time.
inline constexpr int32_t kGroupLag = 2;

// And two barriers of 8 bytes for each stage.
BATON_HOST_DEVICE constexpr int64_t GroupSharedBytes(int32_t rows) {
  return GroupStages(rows) * (GroupStageBytes(rows) + 2 * 8) +
         GroupTotalBytes(rows) + kGroupAlignment;
}

}  // namespace baton::engine::cuda
