// From float weights to int8 and int4 ones. Pure functions, any thread.
#pragma once

#include <cstdint>

#include "absl/types/span.h"

namespace baton::engine::cpu {

// Part of the identity of quantized weights (weight_loading.cc). Raised when
// one of these functions gives other bits for the same weights.
inline constexpr int kQuantizationVersion = 1;

// With a weight that is not finite, both return NaN.

// q = w / scale to the nearest integer of [-127, 127]; returns the scale,
// max |w| / 127.
float QuantizeInt8(absl::Span<const float> weights, int8_t* q);

// Quantizes at most 64 weights to integers of [-8, 7]; returns the scale as the
// bits of a bfloat16, perhaps negative. Of some scales around max |w| / 8 it
// takes the one with the least sum of squared errors.
uint16_t QuantizeInt4(absl::Span<const float> weights, int8_t* q);

}  // namespace baton::engine::cpu
