// Rows of matrices that files have in MXFP4, as they are: for backends that
// hold them so.
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

}  // namespace baton::engine
