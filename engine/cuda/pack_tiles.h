// From rows of weights, as files have them, to tiles in any of their formats
// (weight_tiles.h), on the device: rounding a model takes the host's threads
// far longer than copying it. Bits are those of engine/quantize_weights.h and
// engine/float_convert.h; of a NaN, the bits may be another NaN's.
//
// Gives a kernel to a stream. Arrays are the device's.
#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/cuda/device_runtime.h"
#include "engine/cuda/weight_tiles.h"
#include "engine/dtype.h"
#include "engine/int4_grid.h"

namespace baton::engine::cuda {

// Whether an output's scale is there before its tile is made.
constexpr bool HasScalesAlready(DType type) {
  return type == DType::kF8E4M3 || type == DType::kI8;
}

struct PackArgs {
  // [tiles * kTileOutputs][inputs], of `type`: float32, half or bfloat16; or
  // e4m3 for kFp8, int8 for kInt8, and U8 of [0, 15] for kInt4, which stay as
  // they are, but for U8 on a grid that is none: the kernel writes others.
  std::byte* rows = nullptr;
  // For kInt4 [tiles * kTileOutputs][slices of 64 inputs]: those that weights
  // lie on already, and zeros where one is to be found, which is written here.
  Int4Grid* grids = nullptr;
  DType type = DType::kF32;
  int32_t tiles = 0;
  int32_t inputs = 0;
  WeightFormat format = WeightFormat::kBf16;
  // The tiles, of PaddedInputs(inputs).
  std::byte* out = nullptr;
  // [tiles * kTileOutputs], where HasOutputScales(format). Of e4m3 and int8
  // they are there already, and become NaN where one of the output's weights
  // is.
  float* scales = nullptr;
};
void RunPackTiles(const PackArgs& args, StreamHandle* stream);

}  // namespace baton::engine::cuda
