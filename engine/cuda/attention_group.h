// Prompts' attention on tensor cores of Hopper: the shape of its blocks, for
// its plan and its kernel.
#pragma once

#include <cstdint>

#include "engine/cuda/attention.h"
#include "engine/cuda/host_device.h"

namespace baton::engine::cuda {

// Warps with 16 queries each: two groups of four. The warps of a third group
// bring keys and values.
inline constexpr int32_t kGroupAttentionWarps = kGroupTileQueries / 16;
inline constexpr int32_t kGroupFillWarps = 4;
inline constexpr int32_t kGroupAttentionThreads =
    32 * (kGroupAttentionWarps + kGroupFillWarps);
// Of a thread that has queries, and of one that has none: 504 for three groups,
// of 512 that there are.
inline constexpr int kGroupAttentionRegisters = 192;
inline constexpr int kGroupFillRegisters = 120;

// Tiles of keys and values on their way: one whose values are multiplied, one
// whose keys are, and what comes next.
inline constexpr int32_t kGroupAttentionStages = 4;
// Where a stage may begin: eight rows of it are what bytes are swizzled in.
inline constexpr int32_t kGroupAttentionAlignment = 1024;

// Keys as 64 rows, a position each, of kHeadDim bfloat16, values as kHeadDim
// rows, an element each, of 64.
BATON_HOST_DEVICE constexpr int32_t GroupKeyBytes(int32_t head_dim) {
  return kTilePositions * head_dim * 2;
}
BATON_HOST_DEVICE constexpr int32_t GroupKvBytes(int32_t head_dim) {
  return 2 * GroupKeyBytes(head_dim);
}
// Of a stage, where there are scales: 64 of keys, 64 of values.
inline constexpr int32_t kGroupScaleBytes = 2 * kTilePositions * 4;

// Of the sums of the spans so far, float32.
BATON_HOST_DEVICE constexpr int32_t GroupSumBytes(int32_t head_dim) {
  return kGroupTileQueries * head_dim * 4;
}

// And two barriers of 8 bytes for each stage.
BATON_HOST_DEVICE constexpr int64_t GroupAttentionSharedBytes(
    int32_t head_dim) {
  return kGroupAttentionStages *
             (GroupKvBytes(head_dim) + kGroupScaleBytes + 2 * 8) +
         GroupSumBytes(head_dim) + kGroupAttentionAlignment;
}

// RunAttention's, for tiles of kGroupTileQueries.
void RunGroupAttention(const AttentionArgs& args, StreamHandle* stream);

}  // namespace baton::engine::cuda
