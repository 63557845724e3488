// What becomes of the rows of a layer with latent attention (LatentConfig,
// engine/model_config.h) between products and attention, on the device:
//
//   down           the product that makes what keys, and mostly queries, are of
//   LatentKeys     norms, rotation; keys go to KV memory
//   queries        the product that makes all heads' queries
//   LatentQueries  rotation of the elements that turn
//   key_up         a product of each head's other elements with its own matrix
//   RoundHeads     to queries of attention (latent_attention.h)
//   value_up       a product of each head's sums with its own matrix
//   RoundHeads     to what the output projection takes
//
// Products of heads are those of experts (expert_matmul.h): a head is an
// expert that all rows go through. Each result depends on its row alone.
//
// These functions give kernels to a stream. Arrays are the device's.
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/ids.h"
#include "engine/cuda/device_runtime.h"
#include "engine/cuda/expert_matmul.h"
#include "engine/cuda/heads.h"
#include "engine/kv_layout.h"

namespace baton::engine::cuda {

// Elements of a row's norm that a thread holds; `rank` is at most so many times
// the threads of a block.
inline constexpr int32_t kLatentKeyThreads = 128;
inline constexpr int kLatentKeyElements = 4;
inline constexpr int32_t kMostLatentRank =
    kLatentKeyThreads * kLatentKeyElements;

// Of each row: RMSNorm of the first `query_rank` elements, rounded, to
// `queries`; RMSNorm of the next `rank`, behind which RoPE turns element i with
// i + rope_dim / 2, to the row's key. Rows without a position are left out.
// Keys are rounded as FinishHeadsArgs says it.
struct LatentKeysArgs {
  const float* from = nullptr;  // [rows][query_rank + rank + rope_dim]
  const RowPlace* places = nullptr;
  int32_t rows = 0;
  int32_t query_rank = 0;             // 0: queries are made of something else
  int32_t rank = 0;                   // at most kMostLatentRank
  int32_t rope_dim = 0;               // even, at most 2 * kLatentKeyThreads
  const float* query_norm = nullptr;  // [query_rank]
  const float* norm = nullptr;        // [rank]
  float eps = 0;
  // [positions][rope_stride]: rope_stride / 2 cosines, then as many sines, of
  // which the first rope_dim / 2 are read.
  const float* rope = nullptr;
  int32_t rope_stride = 0;
  uint16_t* queries = nullptr;  // bfloat16 [rows][query_stride]
  int64_t query_stride = 0;
  InputOrder query_order = InputOrder::kNatural;
  // As AttentionArgs; the head has rank + rope_dim elements.
  std::byte* pages = nullptr;
  int64_t page_bytes = 0;
  int64_t scales_offset = 0;
  int32_t block_size = 0;
  int32_t stored_head_dim = 0;
  KvDtype kv_dtype = KvDtype::kBf16;
  const BlockId* block_tables = nullptr;
};
void RunLatentKeys(const LatentKeysArgs& args, StreamHandle* stream);

// Of each row and head: the first nope_dim elements, rounded, to `nope`, and
// the others, turned, to `queries` behind `rank` elements, with zeros behind
// them. Rows without a position are left out.
struct LatentQueriesArgs {
  const float* from = nullptr;  // [rows][heads][nope_dim + rope_dim]
  const RowPlace* places = nullptr;
  int32_t rows = 0;
  int32_t heads = 0;
  int32_t nope_dim = 0;
  int32_t rope_dim = 0;
  const float* rope = nullptr;  // as LatentKeysArgs
  int32_t rope_stride = 0;
  uint16_t* nope = nullptr;  // bfloat16 [rows][heads][nope_stride]
  int64_t nope_stride = 0;
  uint16_t* queries = nullptr;  // bfloat16 [rows][heads][stored_head_dim]
  int32_t rank = 0;
  int32_t stored_head_dim = 0;
};
void RunLatentQueries(const LatentQueriesArgs& args, StreamHandle* stream);

// How `rows` rows of each head are cut for its product: head h's lie at places
// h * rows and on.
ExpertTiling HeadTilingOf(int32_t rows, int32_t heads, WeightFormat format);

// Writes the table of such tiles, and which row of [rows][heads] is that of a
// place.
struct HeadTilesArgs {
  int32_t rows = 0;
  int32_t heads = 0;
  ExpertTiling tiling;
  RowTile* tiles = nullptr;   // [num_tiles]
  int32_t* x_rows = nullptr;  // [places]
};
void RunHeadTiles(const HeadTilesArgs& args, StreamHandle* stream);

// What products of heads gave, in bfloat16: element i of head h of row r goes
// where `order` has element h * head_step + i of row first_row + r.
struct RoundHeadsArgs {
  const float* from = nullptr;  // [heads][rows][size]
  int32_t rows = 0;
  int32_t heads = 0;
  int32_t size = 0;
  uint16_t* to = nullptr;
  int64_t row_stride = 0;
  int32_t head_step = 0;
  int32_t first_row = 0;
  InputOrder order = InputOrder::kNatural;
};
void RunRoundHeads(const RoundHeadsArgs& args, StreamHandle* stream);

}  // namespace baton::engine::cuda
