// Rows of matrices that lie packed (packed_layout.h), as others read rows of
// files: for backends that hold weights in another way than the CPU's.
//
// Pure functions, any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "engine/int4_grid.h"
#include "engine/packed_layout.h"
#include "engine/weight_matrix.h"

namespace baton::engine {

// Writes the layout.inputs weights of an output.
void ReadPackedOutput(const PackedLayout& layout, const std::byte* data,
                      const std::byte* scales, int64_t output, float* weights);

// These are of matrices whose encoding is kPacked.

// ReadRows.
void ReadPackedRows(const WeightMatrix& matrix, int64_t row, int64_t count,
                    absl::Span<float> out);
// CopyRows: bfloat16, int8, or numbers of [0, 15] as bytes.
// REQUIRES: no MXFP4.
void CopyPackedRows(const WeightMatrix& matrix, int64_t row, int64_t count,
                    std::byte* out);
// RowScale: what multiplies int8 weights.
float PackedScale(const WeightMatrix& matrix, int64_t row);
// ReadInt4Grids.
// REQUIRES: 4 bits, no MXFP4.
std::vector<Int4Grid> ReadPackedGrids(const WeightMatrix& matrix, int64_t row,
                                      int64_t count);
// The two parts of CopyMxfp4Row (mxfp4_rows.h).
// REQUIRES: MXFP4.
void CopyPackedMxfp4Codes(const WeightMatrix& matrix, int64_t row,
                          uint8_t* codes);
void CopyPackedMxfp4Exponents(const WeightMatrix& matrix, int64_t row,
                              uint8_t* exponents);

}  // namespace baton::engine
