// Attention of a step's queries over paged KV memory, on the device.
//
// Same answer everywhere: positions are cut into tiles of 64 and spans of 256
// that are aligned to the sequence, not to the step. Within a span the softmax
// runs on from tile to tile; spans are merged in their order. A query's result
// is bitwise the same whether one block ran all its spans (a piece of a prompt)
// or one block ran each and the last of these merged them (a single token,
// where that keeps the device busy), which tensor cores did it, and whatever
// other queries shared its tile: tiles that a query does not see change nothing
// to the bit. Scores and sums are float32; queries and probabilities are
// bfloat16 as inputs of a product. Keys and values are bfloat16, or int8 or
// e4m3 with scales, as KV memory has them.
//
// Pure host code but for RunAttention, which gives kernels to a stream.
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/ids.h"
#include "engine/cuda/device_runtime.h"
#include "engine/cuda/heads.h"
#include "engine/cuda/host_device.h"
#include "engine/cuda/launch_shape.h"
#include "engine/cuda/weight_tiles.h"
#include "engine/kv_layout.h"

namespace baton::engine::cuda {

inline constexpr int32_t kTilePositions = 64;
inline constexpr int32_t kSpanPositions = 256;
// Queries (tokens times heads that share a KV head) of a block: of one that
// runs all spans, and of one that runs a single span of one token.
inline constexpr int32_t kTileQueries = 64;
inline constexpr int32_t kSpanQueries = 16;
// The same of blocks whose warps work in groups (attention_group.cuh).
inline constexpr int32_t kGroupTileQueries = 128;

// Whether there is a kernel for heads of this many stored elements.
bool IsAttentionHeadDim(int32_t stored_head_dim);
// And one for groups of warps, on devices that have them.
bool IsGroupAttentionHeadDim(int32_t stored_head_dim);

// Neighbouring tokens of one sequence whose queries share a block. All zeros: a
// tile that is not there.
struct QueryTile {
  int32_t first_row = 0;         // of the queries
  int32_t first_output_row = 0;  // of the results
  int32_t rows = 0;              // tokens
  int32_t first_position = 0;    // of the first of them
  int32_t block_table = 0;       // where its blocks begin in `block_tables`
};

struct AttentionArgs {
  // bfloat16 [rows][heads][stored head_dim]; zeros behind head_dim.
  const uint16_t* queries = nullptr;
  // Pages of one layer, and where a page's parts lie (kv_layout.h).
  const std::byte* pages = nullptr;
  int64_t page_bytes = 0;
  int64_t head_bytes = 0;
  int64_t values_offset = 0;
  int64_t scales_offset = 0;  // if any: behind the head's keys, or values
  int32_t block_size = 0;
  KvDtype kv_dtype = KvDtype::kBf16;
  const BlockId* block_tables = nullptr;

  const QueryTile* tiles = nullptr;
  int32_t num_tiles = 0;
  // That tiles have at most: with kGroupTileQueries, groups of warps run them
  // (DeviceKernels::attention, IsGroupAttentionHeadDim). Not for spans.
  int32_t tile_queries = kTileQueries;
  int32_t num_heads = 0;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;
  int32_t stored_head_dim = 0;
  // When not 0, the first elements of a key that are its value, too: latent
  // attention (latent_attention.h), whose results have as many elements, heads
  // `out_step` elements apart.
  int32_t value_dim = 0;
  int32_t out_step = 0;
  // Positions that a query sees, its own included; 0: all before it.
  int32_t window = 0;
  // What products of queries and keys are multiplied by (ModelConfig::
  // ScoreScale), times log2(e).
  float score_factor = 0;
  // [num_heads], the logits of the heads' sinks (ModelConfig) times log2(e);
  // null: there are none.
  const float* sinks = nullptr;

  // bfloat16 [rows][out_stride]: heads of head_dim one after another.
  uint16_t* out = nullptr;
  int64_t out_stride = 0;
  InputOrder out_order = InputOrder::kNatural;

  // Spans that are run apart: at most so many of each tile, 0 when every block
  // runs all spans of its tile. Then tiles have at most `span_rows` rows, and
  // these are for the spans' sums, float32 [tiles][heads][max_spans][stored
  // head_dim], their greatest scores and weights, [tiles][heads][max_spans][2],
  // and how many of them are done, [tiles][KV heads], which is zero before and
  // after. With span_rows above 1, which is at most MaxSpanRows, sums and
  // states are of each row of results instead of each tile: [first_output_row +
  // ...].
  int32_t max_spans = 0;
  int32_t span_rows = 1;
  float* span_sums = nullptr;
  float* span_states = nullptr;
  uint32_t* span_counts = nullptr;

  // With heads.qkv, for spans of single rows: the tokens' heads are made here,
  // queries and what is written of keys and values, and `queries` is not read.
  FinishHeadsArgs heads;
};

// Of a block's memory for one tile: keys, values and, if any, their scales.
BATON_HOST_DEVICE constexpr int32_t StageBytes(KvDtype dtype,
                                               int32_t stored_head_dim) {
  return 2 * kTilePositions *
         (dtype == KvDtype::kBf16 ? 2 * stored_head_dim : stored_head_dim + 4);
}

// Warps that share a span of one token, and the bytes in which they hand each
// other its scores for a tile.
BATON_HOST_DEVICE constexpr int32_t SpanParts(int32_t stored_head_dim) {
  return stored_head_dim % 32 == 0 ? 4 : 2;
}
inline constexpr int32_t kSpanExchangeBytes = kTilePositions * kSpanQueries * 4;
// With room for the queries, before there are scores.
BATON_HOST_DEVICE constexpr int32_t SpanExchangeBytes(int32_t stored_head_dim) {
  const int32_t queries = kSpanQueries * stored_head_dim * 2;
  return queries > kSpanExchangeBytes ? queries : kSpanExchangeBytes;
}

// Softmax is by powers of two: what scores and sinks are multiplied by.
inline constexpr double kLog2E = 1.4426950408889634;

// The score_factor of what products of queries and keys are multiplied by.
float ScoreFactor(double scale);

// Tokens of a tile of whole sequences' pieces: as many as `tile_queries` allow.
BATON_HOST_DEVICE inline int32_t MaxTileRows(
    int32_t group, int32_t tile_queries = kTileQueries) {
  return group >= tile_queries ? 1 : tile_queries / group;
}

// Of a tile whose spans run apart: neighbouring tokens that share the KV which
// a block reads.
BATON_HOST_DEVICE inline int32_t MaxSpanRows(int32_t group) {
  return MaxTileRows(group, kSpanQueries);
}

// The first position that a token sees.
BATON_HOST_DEVICE inline int32_t FirstVisible(int32_t position,
                                              int32_t window) {
  return window > 0 && position >= window ? position - window + 1 : 0;
}

// Spans that the tokens at positions [first, last] have to run together; and
// one alone.
BATON_HOST_DEVICE inline int32_t SpansOfAll(int32_t first, int32_t last,
                                            int32_t window) {
  return last / kSpanPositions - FirstVisible(first, window) / kSpanPositions +
         1;
}
BATON_HOST_DEVICE inline int32_t SpansOf(int32_t position, int32_t window) {
  return SpansOfAll(position, position, window);
}

// Of the kernel that runs spans, or whole tiles.
LaunchShape AttentionShape(const AttentionArgs& args);

// What a block's memory holds at most, of the kernels for any device.
int64_t AttentionSharedBytes(KvDtype dtype, int32_t stored_head_dim);

// REQUIRES: num_tiles > 0, IsAttentionHeadDim(stored_head_dim), at most
// kTileQueries query heads per KV head, at most kSpanQueries when max_spans is
// not 0. With value_dim: as RunLatentAttention.
void RunAttention(const AttentionArgs& args, StreamHandle* stream);

}  // namespace baton::engine::cuda
