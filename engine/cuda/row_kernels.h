// What is done to each row of a step besides products and attention, on the
// device. Each kernel's result for a row depends on that row alone, with sums
// in an order that is fixed by the position in the row.
//
// These functions give kernels to a stream. Arrays are the device's.
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/ids.h"
#include "engine/cuda/device_runtime.h"
#include "engine/cuda/matmul.h"
#include "engine/kv_layout.h"

namespace baton::engine::cuda {

// Where a row's token stands. A row whose position is negative is not there: it
// fills a batch up to a size that there is a graph for.
struct RowPlace {
  int32_t position = -1;
  int32_t block_table = 0;  // where its sequence's blocks begin
};

// The embedding: either [vocab][hidden] as bfloat16, or, when the model ties it
// to its head, that matrix, whatever its format.
struct EmbedArgs {
  const TokenId* tokens = nullptr;
  int32_t rows = 0;
  const uint16_t* table = nullptr;  // null: tied
  DeviceMatrix head;                // when tied
  int32_t hidden = 0;
  float* residual = nullptr;  // [rows][hidden]
};
void RunEmbed(const EmbedArgs& args, StreamHandle* stream);

// RMSNorm (Zhang and Sennrich 2019): x / sqrt(mean(x^2) + eps) * weight, as
// bfloat16. Before that, with `added`, the residual becomes what it was plus
// that: products whose outputs ranks computed.
struct NormArgs {
  float* residual = nullptr;  // [rows][hidden]
  int32_t rows = 0;
  int32_t hidden = 0;
  // [parts][rows][part_size], hidden elements of a row in all; or null.
  const float* added = nullptr;
  int32_t part_size = 0;
  const float* weight = nullptr;
  float eps = 0;
  uint16_t* out = nullptr;  // [rows][out_stride]
  int64_t out_stride = 0;
  InputOrder out_order = InputOrder::kNatural;
};
void RunNorm(const NormArgs& args, StreamHandle* stream);

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
  int32_t head_dim = 0;  // even, at most 128
  int32_t stored_head_dim = 0;
  const float* q_norm = nullptr;  // [head_dim], or null
  const float* k_norm = nullptr;
  float eps = 0;
  // [positions][head_dim]: head_dim / 2 cosines, then as many sines.
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
void RunFinishHeads(const FinishHeadsArgs& args, StreamHandle* stream);

// Parts of rows, as ranks computed them, one after another in a row:
// to[row][part * part_size + i] = from[part][row][i], for the first `size`
// elements of each row, or where `to_order` puts them.
struct JoinArgs {
  const std::byte* from = nullptr;  // [parts][rows][part_size]
  int32_t rows = 0;
  int32_t part_size = 0;
  int32_t size = 0;
  int32_t element_bytes = 0;  // 2 or 4
  std::byte* to = nullptr;    // [rows][to_stride]
  int64_t to_stride = 0;      // elements
  InputOrder to_order = InputOrder::kNatural;
};
void RunJoin(const JoinArgs& args, StreamHandle* stream);

// to[i] = from[rows[i]], for `count` rows.
struct GatherArgs {
  const float* from = nullptr;
  const int32_t* rows = nullptr;
  int32_t count = 0;
  int32_t hidden = 0;
  float* to = nullptr;
};
void RunGather(const GatherArgs& args, StreamHandle* stream);

}  // namespace baton::engine::cuda
