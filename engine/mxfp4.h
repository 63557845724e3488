// The numbers of MXFP4 (Open Compute Project 2023, "OCP Microscaling formats
// (MX)"): groups of 32 share a scale. Pure functions, any thread.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

namespace baton::engine {

// Inputs that share a scale.
inline constexpr int64_t kMxfp4Group = 32;

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

}  // namespace baton::engine
