// The shape of blocks of MatmulKernel::kWide, for its plan and its kernel.
// Plain values for host and device.
#pragma once

#include <cstdint>

#include "engine/cuda/host_device.h"
#include "engine/cuda/weight_tiles.h"

namespace baton::engine::cuda {

// Eight warps, each with two tiles of 16 outputs, or with one: then two blocks
// fit on a multiprocessor.
inline constexpr int32_t kWideThreads = 256;
inline constexpr int32_t kWideWarpTiles = 2;
BATON_HOST_DEVICE constexpr int32_t WideOutputs(int32_t warp_tiles) {
  return kWideThreads / 32 * warp_tiles * kTileOutputs;
}
// All rows of the product: one of the two.
inline constexpr int32_t kWideFewRows = 32;
inline constexpr int32_t kWideRows = 64;
// Activations on their way, in slices of 64 inputs.
inline constexpr int32_t kWideStages = 4;
BATON_HOST_DEVICE constexpr int32_t WideStageBytes(int32_t rows) {
  return rows * kSliceInputs * 2;
}

// Of the sums of a chunk, float32.
BATON_HOST_DEVICE constexpr int32_t WideSumBytes(int32_t rows,
                                                 int32_t warp_tiles) {
  return WideOutputs(warp_tiles) * rows * 4;
}

// Chunks of each of so many blocks that share a product's `chunks` out.
BATON_HOST_DEVICE constexpr int32_t WideChunks(int32_t chunks, int32_t blocks) {
  return (chunks + blocks - 1) / blocks;
}

// A block that has all chunks keeps the sum of those so far; others each by
// itself, as they are added in order.
BATON_HOST_DEVICE constexpr int64_t WideSharedBytes(int32_t rows,
                                                    int32_t chunks,
                                                    int32_t blocks,
                                                    int32_t warp_tiles) {
  return kWideStages * WideStageBytes(rows) +
         (blocks == 1 ? 1 : WideChunks(chunks, blocks)) *
             int64_t{WideSumBytes(rows, warp_tiles)};
}

}  // namespace baton::engine::cuda
