// What pack_tiles.h does, by the host, weight by weight and with the CPU
// backend's rounding. Pure, any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/cuda/output_rows.h"
#include "engine/cuda/weight_tiles.h"

namespace baton::engine::cuda {

// Writes `tiles` tiles from `first_tile` on of the matrix whose outputs are
// `rows`, to `out`, and the scales of their outputs to `scales` where the
// format has them.
// REQUIRES: `out` holds tiles * TileBytes(format, PaddedInputs(inputs)) bytes,
// `scales` tiles * 16 values.
void PackTiles(WeightFormat format, const std::vector<OutputRows>& rows,
               int32_t inputs, int64_t first_tile, int64_t tiles,
               std::byte* out, float* scales);

}  // namespace baton::engine::cuda
