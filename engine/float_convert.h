// Conversions between the float types of weight files and of the engine.
// bfloat16 and IEEE half values are carried as their bits (uint16_t). Pure
// functions, any thread. All conversions to bfloat16 round to nearest even;
// NaN stays NaN, infinities stay, and what is beyond the range becomes
// infinity. No function depends on the rounding or denormal mode of the CPU.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "absl/types/span.h"
#include "common/log.h"
#include "engine/dtype.h"

namespace baton::engine {

inline float Bf16ToFloat(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

inline uint16_t FloatToBf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  // Adding 0x7fff, and 1 more when the kept part is odd, carries into the
  // kept part exactly when round-to-nearest-even rounds up.
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  // A NaN could carry into infinity or zero; keep its top bits and quiet it.
  const uint32_t quiet_nan = (bits >> 16) | 0x0040u;
  const bool is_nan = (bits & 0x7fffffffu) > 0x7f800000u;
  return static_cast<uint16_t>(is_nan ? quiet_nan : rounded);
}

// Exact.
inline float F16ToFloat(uint16_t bits) {
  const uint32_t magnitude = bits & 0x7fffu;
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
  // Subnormal halves count in units of 2^-24; normal ones need the exponent's
  // bias moved from 15 to 127, and infinity and NaN the exponent 255.
  const uint32_t subnormal = std::bit_cast<uint32_t>(
      static_cast<float>(static_cast<int32_t>(magnitude)) * 0x1p-24f);
  const uint32_t normal = (magnitude << 13) + (112u << 23);
  const uint32_t special = (magnitude << 13) | 0x7f800000u;
  const uint32_t finite = magnitude < 0x0400u ? subnormal : normal;
  return std::bit_cast<float>(sign | (magnitude < 0x7c00u ? finite : special));
}

inline uint16_t F16ToBf16(uint16_t bits) {
  return FloatToBf16(F16ToFloat(bits));
}

namespace float_convert_internal {

// Reads element i; tensors in a file need not be aligned.
template <typename T>
T Load(const std::byte* src, size_t i) {
  T value;
  std::memcpy(&value, src + i * sizeof(T), sizeof(T));
  return value;
}

}  // namespace float_convert_internal

// Converts all elements of `src`, stored as `dtype`, to float (exact).
// REQUIRES: IsWeightDType(dtype), src holds dst.size() elements.
inline void ConvertToFloat(DType dtype, absl::Span<const std::byte> src,
                           absl::Span<float> dst) {
  using float_convert_internal::Load;
  CHECK(IsWeightDType(dtype)) << DTypeName(dtype);
  CHECK_EQ(src.size(), dst.size() * DTypeBytes(dtype));
  const std::byte* const s = src.data();
  float* const d = dst.data();
  const size_t n = dst.size();
  if (n == 0) return;
  if (dtype == DType::kF32) {
    std::memcpy(d, s, n * sizeof(float));
  } else if (dtype == DType::kBf16) {
    for (size_t i = 0; i < n; ++i) d[i] = Bf16ToFloat(Load<uint16_t>(s, i));
  } else {
    for (size_t i = 0; i < n; ++i) d[i] = F16ToFloat(Load<uint16_t>(s, i));
  }
}

// Converts all elements of `src`, stored as `dtype`, to bfloat16.
// REQUIRES: IsWeightDType(dtype), src holds dst.size() elements.
inline void ConvertToBf16(DType dtype, absl::Span<const std::byte> src,
                          absl::Span<uint16_t> dst) {
  using float_convert_internal::Load;
  CHECK(IsWeightDType(dtype)) << DTypeName(dtype);
  CHECK_EQ(src.size(), dst.size() * DTypeBytes(dtype));
  const std::byte* const s = src.data();
  uint16_t* const d = dst.data();
  const size_t n = dst.size();
  if (n == 0) return;
  if (dtype == DType::kBf16) {
    std::memcpy(d, s, n * sizeof(uint16_t));
  } else if (dtype == DType::kF32) {
    for (size_t i = 0; i < n; ++i) d[i] = FloatToBf16(Load<float>(s, i));
  } else {
    for (size_t i = 0; i < n; ++i) d[i] = F16ToBf16(Load<uint16_t>(s, i));
  }
}

}  // namespace baton::engine
