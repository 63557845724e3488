// The numbers of MXFP4 (Open Compute Project 2023, "OCP Microscaling formats
// (MX)"): groups of 32 share a scale, a power of two by its exponent. Pure
// functions, any thread.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

namespace baton::engine {

// Inputs that share a scale.
inline constexpr int64_t kMxfp4Group = 32;
// Of their numbers.
inline constexpr int64_t kMxfp4GroupBytes = kMxfp4Group / 2;

// e2m1, by the four bits of `code`: a sign, two bits of exponent and one of the
// mantissa.
inline float E2m1ToFloat(unsigned code) {
  constexpr float kMagnitudes[] = {0.0f, 0.5f, 1.0f, 1.5f,
                                   2.0f, 3.0f, 4.0f, 6.0f};
  const float magnitude = kMagnitudes[code & 7];
  return (code & 8) != 0 ? -magnitude : magnitude;
}

// e8m0: 2 to the power of `exponent` less 127; 255 is not a number.
inline float E8m0ToFloat(int exponent) {
  constexpr int kNotANumber = 255;
  constexpr int kBias = 127;
  return exponent == kNotANumber ? std::numeric_limits<float>::quiet_NaN()
                                 : std::ldexp(1.0f, exponent - kBias);
}

// Exponents with which all numbers are zero or normal numbers of bfloat16.
inline constexpr int kLeastMxfp4Exponent = 2;
inline constexpr int kGreatestMxfp4Exponent = 252;
// One more, with which 4 is infinite. Where matrices are packed, numbers that
// are not finite are written so.
inline constexpr int kInfiniteMxfp4Exponent = kGreatestMxfp4Exponent + 1;
inline constexpr unsigned kInfiniteMxfp4Code = 6;

// The bits of a number as bfloat16.
// REQUIRES: an exponent, or an exponent and a code, as above.
inline uint16_t Mxfp4ToBf16(unsigned code, int exponent) {
  const unsigned magnitude = code & 7;
  const unsigned sign = (code & 8) << 12;
  if (magnitude == 0) return static_cast<uint16_t>(sign);
  // Two bits of the exponent and one of the mantissa, as bfloat16 has them. But
  // 0.5 has no mantissa.
  const unsigned bits = magnitude == 1 ? 0 : magnitude << 6;
  return static_cast<uint16_t>(
      sign | (bits + (static_cast<unsigned>(exponent - 1) << 7)));
}

}  // namespace baton::engine
