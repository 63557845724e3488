// Attention with one key for all heads, of which the first elements are the
// value (latent attention: LatentConfig, engine/model_config.h), over the paged
// KV memory of KvLayout::shared_value_dim.
//
// Tiles, spans and what becomes of scores are those of attention.h, and so is
// "same answer everywhere". What differs: keys are long, and there are no
// values to be read. So each byte that comes to a block is multiplied twice:
// with queries as KV memory has it, words of two neighbouring elements of a
// slot, and, two words of neighbouring slots at a time whose halves change
// places in registers, with weights.
//
// Pure host code but for RunLatentAttention, which gives kernels to a stream.
#pragma once

#include <cstdint>

#include "engine/cuda/attention.h"
#include "engine/cuda/host_device.h"
#include "engine/cuda/launch_shape.h"
#include "engine/kv_layout.h"

namespace baton::engine::cuda {

// Queries (tokens times heads) of a block, in groups of 16 that four warps
// share: of each tile of positions a warp multiplies a quarter of the scores,
// and then a quarter of the elements.
inline constexpr int32_t kLatentQueries = 32;
inline constexpr int32_t kLatentParts = 4;
inline constexpr int32_t kLatentThreads =
    kLatentQueries / 16 * kLatentParts * 32;

// Whether there is a kernel for keys of so many stored elements that have
// values of so many: those of DeepSeek's models and what is built as they are,
// 576 and 512, and some small ones.
bool IsLatentAttention(int32_t stored_head_dim, int32_t value_dim);

// Tokens of a tile, of whole sequences' pieces: whose queries fill blocks.
int32_t LatentTileRows(int32_t heads);
// Blocks for all queries of so many tokens.
BATON_HOST_DEVICE constexpr int32_t LatentBlocks(int32_t heads, int32_t rows) {
  return (heads * rows + kLatentQueries - 1) / kLatentQueries;
}

// Of a block's memory: a tile's keys and, if any, scales; its queries, rows far
// enough apart that lanes use different banks; and what warps hand each other.
BATON_HOST_DEVICE constexpr int32_t LatentStageBytes(KvDtype dtype,
                                                     int32_t stored_head_dim) {
  return kTilePositions *
         (dtype == KvDtype::kBf16 ? 2 * stored_head_dim : stored_head_dim + 4);
}
BATON_HOST_DEVICE constexpr int32_t LatentQueryBytes(int32_t stored_head_dim) {
  return 2 * stored_head_dim + 16;
}
inline constexpr int32_t kLatentExchangeBytes =
    kLatentQueries / kSpanQueries * kSpanExchangeBytes;
BATON_HOST_DEVICE constexpr int64_t LatentSharedBytes(KvDtype dtype,
                                                      int32_t stored_head_dim) {
  return 2 * int64_t{LatentStageBytes(dtype, stored_head_dim)} +
         kLatentQueries * LatentQueryBytes(stored_head_dim) +
         kLatentExchangeBytes;
}

// Of the kernel that runs spans, or whole tiles.
LaunchShape LatentAttentionShape(const AttentionArgs& args);

// The arguments of RunAttention, with one KV head and value_dim. Sums of spans
// are float32 [tiles][heads][max_spans][value_dim], and counters [tiles]
// [LatentBlocks(heads, 1)].
// REQUIRES: num_tiles > 0, IsLatentAttention(stored_head_dim, value_dim), tiles
// of at most LatentTileRows, or of one row when max_spans is not 0; no window,
// no sinks, no heads.qkv; out_step and out_stride are multiples of 4.
void RunLatentAttention(const AttentionArgs& args, StreamHandle* stream);

}  // namespace baton::engine::cuda
