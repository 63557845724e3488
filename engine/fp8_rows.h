// Matrices of checkpoints in FP8: e4m3 numbers (e4m3.h), times a float that all
// of a matrix, an output, or a block of outputs and inputs shares:
// weight = e4m3 * scale.
//
// The scales' tensor is [] or [1]; [outputs] or [outputs, 1]; or
// [ceil(outputs / block_rows), ceil(inputs / block_columns)].
//
// Pure functions, any thread.
#pragma once

#include <cstdint>

#include "absl/types/span.h"
#include "engine/weight_matrix.h"

namespace baton::engine {

// ReadRows for this encoding.
// REQUIRES: what LoadModelWeights checks: the shapes above.
void ReadFp8Rows(const WeightMatrix& matrix, int64_t row, int64_t count,
                 absl::Span<float> out);

// Whether all inputs of an output have the same scale, and that.
bool HasScalePerOutput(const WeightMatrix& matrix);
float OutputScale(const WeightMatrix& matrix, int64_t row);

}  // namespace baton::engine
