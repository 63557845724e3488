// From the matrices of a model's files to tiles (weight_tiles.h), in any of
// their formats: int8 and int4 are quantized as the CPU backend does. Pure, any
// thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/cuda/weight_tiles.h"
#include "engine/weight_matrix.h"

namespace baton::engine::cuda {

// Rows of a matrix of the model that are outputs, one after another, of a
// matrix on the device. No matrix: outputs that are zero.
struct OutputRows {
  const WeightMatrix* matrix = nullptr;
  int64_t first = 0;
  int64_t count = 0;
};

// Writes `tiles` tiles from `first_tile` on of the matrix whose outputs are
// `rows`, to `out`, and the scales of their outputs to `scales` where the
// format has them.
// REQUIRES: `out` holds tiles * TileBytes(format, PaddedInputs(inputs)) bytes,
// `scales` tiles * 16 values.
void PackTiles(WeightFormat format, const std::vector<OutputRows>& rows,
               int32_t inputs, int64_t first_tile, int64_t tiles,
               std::byte* out, float* scales);

}  // namespace baton::engine::cuda
