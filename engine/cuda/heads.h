// What becomes of a row's heads between the product with Q, K and V and
// attention: by a kernel of its own (row_kernels.h), or, of single tokens, by
// attention (attention.h). Plain values.
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/ids.h"
#include "engine/kv_layout.h"

namespace baton::engine::cuda {

// Where a row's token stands. A row whose position is negative is not there: it
// fills a batch up to a size that there is a graph for.
struct RowPlace {
  int32_t position = -1;
  int32_t block_table = 0;  // where its sequence's blocks begin
};

// From the product with Q, K and V (bias included) to rotated queries, and keys
// and values in KV memory: RMSNorm of each head of Q and K where the model has
// it, then RoPE. Keys and values are rounded as the CPU backend does it, e4m3
// as engine/e4m3.h: to the same bits.
struct FinishHeadsArgs {
  const float* qkv = nullptr;  // [rows][(heads + 2 kv_heads) * head_dim]
  const RowPlace* places = nullptr;
  int32_t rows = 0;
  int32_t num_heads = 0;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;  // even, at most 256
  // RoPE turns element i with i + turning_pairs, for i < turning_pairs, and
  // leaves others; at most head_dim / 2.
  int32_t turning_pairs = 0;
  int32_t stored_head_dim = 0;
  const float* q_norm = nullptr;  // [head_dim], or null
  const float* k_norm = nullptr;
  float eps = 0;
  // [positions][head_dim]: head_dim / 2 cosines, then as many sines; 1 and 0
  // from turning_pairs on.
  const float* rope = nullptr;
  uint16_t* queries = nullptr;  // [rows][heads][stored_head_dim]
  // As AttentionArgs.
  std::byte* pages = nullptr;
  int64_t page_bytes = 0;
  int64_t head_bytes = 0;
  int64_t values_offset = 0;
  int64_t scales_offset = 0;
  int32_t block_size = 0;
  KvDtype kv_dtype = KvDtype::kBf16;
  const BlockId* block_tables = nullptr;
};
}  // namespace baton::engine::cuda
