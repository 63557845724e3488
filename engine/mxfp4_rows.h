// Rows of matrices that files have in MXFP4, as they are, or as e4m3: for
// backends that hold them so.
//
// Pure functions, any thread.
#pragma once

#include <cstdint>

#include "engine/weight_matrix.h"

namespace baton::engine {

// Whether the numbers of a matrix are MXFP4: those of gpt-oss's experts, of
// GGUF's blocks, and packed ones.
bool HasMxfp4(const WeightMatrix& matrix);

// Writes the numbers of a row, a byte with four bits each, [columns], and the
// exponents of their groups, [columns / 32] (mxfp4.h).
// REQUIRES: HasMxfp4, 0 <= row < matrix.rows.
void CopyMxfp4Row(const WeightMatrix& matrix, int64_t row, uint8_t* codes,
                  uint8_t* exponents);

// Whether each output has a power of two with which all of its numbers are e4m3
// (e4m3.h): where exponents of an output are at most 14 apart, or more where
// numbers are zero. Reads all exponents.
bool Mxfp4IsE4m3(const WeightMatrix& matrix);

// As e4m3: the numbers of rows [row, row + count), one row after another; and
// what multiplies those of a row.
// REQUIRES: Mxfp4IsE4m3.
void CopyMxfp4AsE4m3(const WeightMatrix& matrix, int64_t row, int64_t count,
                     uint8_t* out);
float Mxfp4RowScale(const WeightMatrix& matrix, int64_t row);

}  // namespace baton::engine
