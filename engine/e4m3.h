// e4m3, the 8-bit floating point of the Open Compute Project: a sign, 4 bits of
// exponent (bias 7), 3 of fraction; no infinity, largest value 448, smallest
// 2^-9. A byte whose lower 7 bits are all set is NaN. Pure functions, any
// thread.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace baton::engine {

inline constexpr float kE4m3Max = 448.0f;

// To nearest even; what is beyond the range becomes the largest value, NaN
// stays NaN.
inline uint8_t FloatToE4m3(float value) {
  const auto sign =
      static_cast<uint8_t>(std::bit_cast<uint32_t>(value) >> 24 & 0x80);
  const float magnitude = std::fabs(value);
  if (std::isnan(value)) return sign | 0x7f;
  if (magnitude >= kE4m3Max) return sign | 0x7e;
  if (magnitude < 0x1p-6f) {  // no exponent of its own: multiples of 2^-9
    // Adding it rounds to an integer.
    const float rounded = magnitude * 0x1p9f + 0x1p23f - 0x1p23f;
    return sign | static_cast<uint8_t>(rounded);
  }
  auto bits = std::bit_cast<uint32_t>(magnitude);
  bits += 0x7ffff + ((bits >> 20) & 1);
  // Exponent (bias 127) and the three upper bits of the fraction, to bias 7.
  return sign | static_cast<uint8_t>((bits >> 20) - (120u << 3));
}

// Exact.
inline float E4m3ToFloat(uint8_t byte) {
  const uint32_t sign = uint32_t{byte & 0x80u} << 24;
  const uint32_t rest = byte & 0x7fu;
  if (rest == 0x7f) return std::numeric_limits<float>::quiet_NaN();
  // The exponent is 120 too small then, also where there is none.
  return std::bit_cast<float>(sign | rest << 20) * 0x1p120f;
}

}  // namespace baton::engine
