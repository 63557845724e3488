// Matrices of gpt-oss's experts, as Hugging Face's checkpoints have them: one
// tensor for all experts of a layer, in which the outputs of gate and up lie in
// turns (WeightMatrix::run says which are whose). The views are of one expert.
//
//   kMxfp4 (mxfp4.h): values U8 [outputs, inputs / 32, 16], two numbers in a
//     byte, the first of them in its low half; scales U8 [outputs, inputs /
//     32].
//   kByInput: values F32, F16 or BF16 [inputs, outputs].
//
// Pure functions, any thread.
#pragma once

#include <cstdint>

#include "absl/types/span.h"
#include "engine/weight_matrix.h"

namespace baton::engine {

// ReadRows for these two encodings. The numbers of MXFP4 are bfloat16 numbers,
// too.
// REQUIRES: what LoadModelWeights checks: the shapes above.
void ReadExpertRows(const WeightMatrix& matrix, int64_t row, int64_t count,
                    absl::Span<float> out);

}  // namespace baton::engine
