// What LoRA adapters add to products, on the device: y += scale * B (A x), of
// each row what its own adapter says. Rows come in tiles of one adapter each.
// Each sum is of one order, whatever the tile: a row's result depends on that
// row and its adapter alone.
//
// These functions give kernels to a stream. Arrays are the device's.
#pragma once

#include <cstdint>

#include "engine/cuda/device_runtime.h"
#include "engine/cuda/weight_tiles.h"

namespace baton::engine::cuda {

// Most rows of a tile, and what ranks are padded to.
inline constexpr int32_t kLoraRows = 8;
inline constexpr int32_t kLoraRankUnit = 8;
// Most matrices that read the same (kMaxLoraParts, engine/lora_adapter.h).
inline constexpr int32_t kLoraParts = 3;

// Rows list[first], ..., list[first + rows - 1] have this adapter; with no
// rows, it is not there.
struct LoraTile {
  int32_t adapter = 0;
  int32_t first = 0;
  int32_t rows = 0;
};

// The rows of a pass that have adapters.
struct LoraRows {
  const LoraTile* tiles = nullptr;
  int32_t num_tiles = 0;
  const int32_t* list = nullptr;
};

// What an adapter adds to one of the matrices that read the same; null where it
// adds nothing.
struct LoraPart {
  const uint16_t* a = nullptr;  // bfloat16 [rank][padded inputs]
  const uint16_t* b = nullptr;  // bfloat16 [outputs][rank]
  float scale = 0;
};
struct LoraEntry {
  LoraPart parts[kLoraParts];
};

// narrow = scale * A x, in bfloat16.
struct LoraNarrowArgs {
  LoraRows rows;
  const LoraEntry* entries = nullptr;  // [adapters]
  int32_t parts = 0;
  int32_t rank = 0;           // a multiple of kLoraRankUnit
  int32_t padded_inputs = 0;  // beyond the inputs, x is zero
  const uint16_t* x = nullptr;
  int64_t x_stride = 0;
  InputOrder x_order = InputOrder::kNatural;
  uint16_t* narrow = nullptr;  // [rows][kLoraParts][rank]
};
void RunLoraNarrow(const LoraNarrowArgs& args, StreamHandle* stream);

// Adds B narrow to rows [first_row, end_row), the first of which is out's.
struct LoraWideArgs {
  LoraRows rows;
  const LoraEntry* entries = nullptr;
  int32_t parts = 0;
  int32_t rank = 0;
  const uint16_t* narrow = nullptr;
  int32_t outputs[kLoraParts] = {};  // of each part
  // Where those of a part begin in a row; or, with `in_turns`, they are tiles
  // of gate and of up in turns, as in the matrix of both.
  int32_t columns[kLoraParts] = {};
  bool in_turns = false;
  int32_t first_row = 0;
  int32_t end_row = 0;
  float* out = nullptr;
  int64_t out_stride = 0;
};
void RunLoraWide(const LoraWideArgs& args, StreamHandle* stream);

// SwiGLU of products that were stored, tiles of gate and of up in turns: what
// products do by themselves where nothing is to be added (MatmulOutput::
// kSwiglu), to the same bits.
struct SwigluArgs {
  const float* from = nullptr;  // [rows][from_stride]
  int64_t from_stride = 0;
  int32_t rows = 0;
  int32_t elements = 0;  // of a row of the result
  uint16_t* to = nullptr;
  int64_t to_stride = 0;
  InputOrder to_order = InputOrder::kNatural;
  int32_t first_row = 0;  // of the result
  bool gelu = false;      // as MatmulArgs
};
void RunSwiglu(const SwigluArgs& args, StreamHandle* stream);

}  // namespace baton::engine::cuda
