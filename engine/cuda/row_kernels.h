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
#include "engine/cuda/heads.h"
#include "engine/cuda/matmul.h"

namespace baton::engine::cuda {

// The embedding: either [vocab][hidden] as bfloat16, or, when the model ties it
// to its head, that matrix, whatever its format.
struct EmbedArgs {
  const TokenId* tokens = nullptr;
  int32_t rows = 0;
  const uint16_t* table = nullptr;  // null: tied
  DeviceMatrix head;                // when tied
  int32_t hidden = 0;
  float scale = 1.0f;         // what it is multiplied by
  float* residual = nullptr;  // [rows][hidden]
};
void RunEmbed(const EmbedArgs& args, StreamHandle* stream);

// RMSNorm (Zhang and Sennrich 2019): x / sqrt(mean(x^2) + eps) * weight, as
// bfloat16. Before that, with `added`, the residual becomes what it was plus
// that: products whose outputs ranks computed, or, with `added_weight`, their
// RMSNorm by that weight (ModelConfig::post_norms).
struct NormArgs {
  float* residual = nullptr;  // [rows][hidden]
  int32_t rows = 0;
  int32_t hidden = 0;
  // [parts][rows][part_size], hidden elements of a row in all; or null.
  const float* added = nullptr;
  int32_t part_size = 0;
  const float* added_weight = nullptr;  // [hidden], or null
  const float* weight = nullptr;
  float eps = 0;
  uint16_t* out = nullptr;  // [rows][out_stride]
  int64_t out_stride = 0;
  InputOrder out_order = InputOrder::kNatural;
};
void RunNorm(const NormArgs& args, StreamHandle* stream);

// Of all heads, queries to `queries`.
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
