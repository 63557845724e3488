// Matrices of gpt-oss's experts, as Hugging Face's checkpoints have them: one
// tensor for all experts of a layer, in which the outputs of gate and up lie in
// turns (WeightMatrix::run says which are whose). The views are of one expert.
//
//   kMxfp4 (Open Compute Project 2023, "OCP Microscaling formats (MX)"): groups
//     of 32 inputs, each an e2m1 number, two in a byte, the first of them in
//     its low half, and a scale, 2 to the power of a byte less 127 (255: not a
//     number). values U8 [outputs, inputs / 32, 16], scales U8 [outputs,
//     inputs / 32].
//   kByInput: values F32, F16 or BF16 [inputs, outputs].
//
// Pure functions, any thread.
#pragma once

#include <cstdint>

#include "absl/types/span.h"
#include "engine/weight_matrix.h"

namespace baton::engine {

// Inputs that share a scale.
inline constexpr int64_t kMxfp4Group = 32;

// ReadRows for these two encodings. The numbers of MXFP4 are bfloat16 numbers,
// too.
// REQUIRES: what LoadModelWeights checks: the shapes above.
void ReadExpertRows(const WeightMatrix& matrix, int64_t row, int64_t count,
                    absl::Span<float> out);

}  // namespace baton::engine
