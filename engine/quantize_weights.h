// From float weights to int8, int4 and fp8 ones: the same for every backend.
// Pure functions, any thread.
#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "engine/int4_grid.h"

namespace baton::engine {

// Part of the identity of quantized weights. Raised when one of these functions
// gives other bits for the same weights.
inline constexpr int kQuantizationVersion = 3;

// Weights that were rounded further are other weights, and so are those that
// another Baton rounded in another way: "HASH-int4-3". `model` is the identity
// of what was rounded; "bf16" leaves it as it is, as "mxfp4" does, which rounds
// nothing.
std::string QuantizedIdentity(absl::string_view model, absl::string_view dtype);

// With a weight that is not finite, all return NaN.

// q = w / scale to the nearest integer of [-127, 127]; returns the scale,
// max |w| / 127.
float QuantizeInt8(absl::Span<const float> weights, int8_t* q);

// The grid with the least sum of squared errors of some that span all of at
// most 64 weights, or a little less; none when they are too small for a scale.
// REQUIRES: the weights are finite.
Int4Grid FindInt4Grid(absl::Span<const float> weights);

// Quantizes the weights of an output, 64 after 64, to q of [0, 15] and the
// codes of as many grids, and returns the output's scale. `grids` are those of
// weights that lie on some already (GPTQ, AWQ), one for each 64, which are
// taken with their scales rounded to bfloat16: so each q stays what it was.
// What has no grid there, or all if it is empty, gets one of FindInt4Grid.
float QuantizeInt4(absl::Span<const float> weights,
                   absl::Span<const Int4Grid> grids, uint8_t* q,
                   uint16_t* codes);

// q = w / scale to the nearest e4m3 (e4m3.h); returns the scale, max |w| / 448.
float QuantizeFp8(absl::Span<const float> weights, uint8_t* q);

}  // namespace baton::engine
