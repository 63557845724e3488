// GPTQ and AWQ matrices: a few bits per weight, with a scale and a zero point
// for each output and group of inputs; weight = (stored - zero) * scale.
//
// With K inputs, N outputs, G groups, and `bits` bits per stored number:
//   GPTQ (AutoGPTQ, Frantar et al. 2022): values I32 [K * bits / 32, N], the
//     first of a word's inputs in its lowest bits; zeros I32
//     [G, N * bits / 32], stored less one in checkpoints of the first version.
//   AWQ (AutoAWQ "gemm", Lin et al. 2023): values I32 [K, N / 8], a word holds
//     the outputs 0, 2, 4, 6, 1, 3, 5, 7 of eight, from its lowest bits; zeros
//     I32 [G, N / 8] in the same order.
//   scales [G, N] of both.
//
// Pure functions, any thread.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "engine/int4_grid.h"
#include "engine/weight_matrix.h"

namespace baton::engine {

// ReadRows for these two encodings.
// REQUIRES: what LoadModelWeights checks: the shapes above, and group_index
// below G.
void ReadGroupedRows(const WeightMatrix& matrix, int64_t row, int64_t count,
                     absl::Span<float> out);

// HasInt4Grids for these, ReadInt4Grids where it is so, and CopyRows: the
// stored numbers of [0, 15]. Fastest when `row` and `count` are multiples of 8.
bool HasGroupedGrids(const WeightMatrix& matrix);
void CopyGroupedRows(const WeightMatrix& matrix, int64_t row, int64_t count,
                     uint8_t* out);
std::vector<Int4Grid> ReadGroupedGrids(const WeightMatrix& matrix, int64_t row,
                                       int64_t count);

}  // namespace baton::engine
