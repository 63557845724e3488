// From float weights to int8, int4 and fp8 ones: the same for every backend.
// Pure functions, any thread.
#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace baton::engine {

// Part of the identity of quantized weights. Raised when one of these functions
// gives other bits for the same weights.
inline constexpr int kQuantizationVersion = 2;

// Weights that were rounded further are other weights, and so are those that
// another Baton rounded in another way: "HASH-int4-2". `model` is the identity
// of what was rounded; "bf16" leaves it as it is.
std::string QuantizedIdentity(absl::string_view model, absl::string_view dtype);

// With a weight that is not finite, all return NaN.

// q = w / scale to the nearest integer of [-127, 127]; returns the scale,
// max |w| / 127.
float QuantizeInt8(absl::Span<const float> weights, int8_t* q);

// Quantizes at most 64 weights to integers of [-8, 7]; returns the scale as the
// bits of a bfloat16, perhaps negative. Of some scales around max |w| / 8 it
// takes the one with the least sum of squared errors.
uint16_t QuantizeInt4(absl::Span<const float> weights, int8_t* q);

// q = w / scale to the nearest e4m3 (e4m3.h); returns the scale, max |w| / 448.
float QuantizeFp8(absl::Span<const float> weights, uint8_t* q);

}  // namespace baton::engine
