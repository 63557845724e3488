// From floats to what is stored: one text for all kernels that store weights,
// keys and values. Included by kernels alone.
#pragma once

#include <cstdint>

#include "device_target.h"

namespace baton::engine::cuda {

BATON_DEVICE float MagnitudeOf(float x) {
  return BitsFloat(FloatBits(x) & 0x7fffffffu);
}

BATON_DEVICE uint16_t ToBf16(float x) {
  return static_cast<uint16_t>(PackBf16(x, 0.0f));
}
BATON_DEVICE float FromBf16(uint16_t bits) {
  return BitsFloat(uint32_t{bits} << 16);
}

// Exact, as F16ToFloat (engine/float_convert.h) does it.
BATON_DEVICE float FromF16(uint16_t bits) {
  const uint32_t sign = uint32_t{bits & 0x8000u} << 16;
  const uint32_t magnitude = bits & 0x7fffu;
  uint32_t result = magnitude << 13;
  if (magnitude >= 0x7c00u) {  // infinity, NaN
    result |= 0x7f800000u;
  } else if (magnitude >= 0x0400u) {
    result += 112u << 23;  // the exponent's bias: 15, 127
  } else {                 // units of 2^-24
    result = FloatBits(
        MulRn(static_cast<float>(static_cast<int32_t>(magnitude)), 0x1p-24f));
  }
  return BitsFloat(sign | result);
}

// Adding it rounds to an integer, which then stands in the low bits.
constexpr float kRoundingMagic = 12582912.0f;

BATON_DEVICE int8_t ToInt8(float x, float factor) {
  return static_cast<int8_t>(
      FloatBits(AddRn(MulRn(x, factor), kRoundingMagic)) -
      FloatBits(kRoundingMagic));
}

constexpr float kFp8Max = 448.0f;

// As FloatToE4m3 (engine/e4m3.h) does it.
BATON_DEVICE uint8_t ToE4m3(float x) {
  const uint32_t bits = FloatBits(x);
  const uint32_t sign = bits >> 24 & 0x80u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude >= FloatBits(kFp8Max)) {
    const bool nan = magnitude > 0x7f800000u;
    return static_cast<uint8_t>(sign | (nan ? 0x7fu : 0x7eu));
  }
  if (magnitude < FloatBits(0x1p-6f)) {  // no exponent of its own
    // Adding it rounds to a multiple of 2^-9, whose number then stands in the
    // low bits.
    const float magic = 0x1p14f;
    return static_cast<uint8_t>(
        sign | (FloatBits(AddRn(BitsFloat(magnitude), magic)) & 0xffu));
  }
  const uint32_t rounded = magnitude + 0x7ffffu + (magnitude >> 20 & 1u);
  // Exponent (bias 127) and the three upper bits of the fraction, to bias 7.
  return static_cast<uint8_t>(sign | ((rounded >> 20) - (120u << 3)));
}

}  // namespace baton::engine::cuda
