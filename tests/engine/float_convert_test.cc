#include "engine/float_convert.h"

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include <gtest/gtest.h>

namespace baton::engine {
namespace {

// The value of a half by the definition in IEEE 754.
float HalfValue(uint16_t bits) {
  const float sign = (bits & 0x8000) != 0 ? -1.0f : 1.0f;
  const int exponent = (bits >> 10) & 31;
  const int mantissa = bits & 1023;
  if (exponent == 31) {
    if (mantissa != 0) return std::numeric_limits<float>::quiet_NaN();
    return sign * std::numeric_limits<float>::infinity();
  }
  if (exponent == 0) return sign * std::ldexp(mantissa, -24);
  return sign * std::ldexp(1024 + mantissa, exponent - 25);
}

// Whether `bits` is the bfloat16 nearest to a finite `value`, even on a tie.
void ExpectNearestEven(float value, uint16_t bits) {
  const double v = value;
  const double got = Bf16ToFloat(bits);
  const uint16_t magnitude = bits & 0x7fff;
  if (std::isinf(got)) {
    // Half a step beyond the largest finite bfloat16 rounds to infinity.
    EXPECT_GE(std::abs(v), std::ldexp(511.0, 119)) << value;
    return;
  }
  const double error = std::abs(got - v);
  for (int step : {-1, 1}) {
    if (magnitude == 0 && step < 0) continue;
    const uint16_t other = (bits & 0x8000) | (magnitude + step);
    if (std::isinf(Bf16ToFloat(other))) continue;
    const double other_error = std::abs(Bf16ToFloat(other) - v);
    EXPECT_LE(error, other_error) << value;
    if (error == other_error) {
      EXPECT_EQ(bits & 1, 0) << value;
    }
  }
}

TEST(FloatConvertTest, EveryBfloat16Survives) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto b = static_cast<uint16_t>(bits);
    const float value = Bf16ToFloat(b);
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(Bf16ToFloat(FloatToBf16(value)))) << bits;
    } else {
      EXPECT_EQ(FloatToBf16(value), b);
    }
  }
}

TEST(FloatConvertTest, EveryHalfIsExact) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto h = static_cast<uint16_t>(bits);
    const float expected = HalfValue(h);
    const float actual = F16ToFloat(h);
    if (std::isnan(expected)) {
      EXPECT_TRUE(std::isnan(actual)) << bits;
      EXPECT_TRUE(std::isnan(Bf16ToFloat(F16ToBf16(h)))) << bits;
    } else {
      EXPECT_EQ(std::bit_cast<uint32_t>(actual),
                std::bit_cast<uint32_t>(expected))
          << bits;
      if (std::isfinite(expected)) ExpectNearestEven(expected, F16ToBf16(h));
    }
  }
}

TEST(FloatConvertTest, RoundsToNearestEven) {
  std::mt19937 random(7);
  for (int i = 0; i < 300000; ++i) {
    const float value = std::bit_cast<float>(static_cast<uint32_t>(random()));
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(Bf16ToFloat(FloatToBf16(value))));
    } else if (std::isfinite(value)) {
      ExpectNearestEven(value, FloatToBf16(value));
    }
  }
  // Ties, both ways.
  EXPECT_EQ(FloatToBf16(std::bit_cast<float>(0x3f808000u)), 0x3f80);
  EXPECT_EQ(FloatToBf16(std::bit_cast<float>(0x3f818000u)), 0x3f82);
  EXPECT_EQ(FloatToBf16(std::bit_cast<float>(0x3f808001u)), 0x3f81);
}

TEST(FloatConvertTest, NanInfinityAndOverflow) {
  // The NaN whose payload is all in the bits that are cut off.
  for (uint32_t bits : {0x7f800001u, 0xff800001u, 0x7fffffffu, 0xffffffffu}) {
    EXPECT_TRUE(
        std::isnan(Bf16ToFloat(FloatToBf16(std::bit_cast<float>(bits)))));
  }
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(Bf16ToFloat(FloatToBf16(infinity)), infinity);
  EXPECT_EQ(Bf16ToFloat(FloatToBf16(-infinity)), -infinity);
  EXPECT_EQ(Bf16ToFloat(FloatToBf16(std::numeric_limits<float>::max())),
            infinity);
}

TEST(FloatConvertTest, ConvertsUnalignedRuns) {
  constexpr std::array<float, 5> values = {0.0f, -1.5f, 3.14159f, 1e-40f,
                                           -7e30f};
  std::array<std::byte, 1 + sizeof(values)> bytes;
  std::memcpy(bytes.data() + 1, values.data(), sizeof(values));
  const absl::Span<const std::byte> source =
      absl::MakeConstSpan(bytes).subspan(1);
  std::array<float, values.size()> floats;
  ConvertToFloat(DType::kF32, source, absl::MakeSpan(floats));
  EXPECT_EQ(floats, values);
  std::vector<uint16_t> rounded(values.size());
  ConvertToBf16(DType::kF32, source, absl::MakeSpan(rounded));
  for (size_t i = 0; i < values.size(); ++i) {
    EXPECT_EQ(rounded[i], FloatToBf16(values[i]));
  }

  // The same bytes as twice as many 16-bit values.
  std::vector<float> halves(2 * values.size());
  std::vector<uint16_t> half_bits(halves.size());
  std::memcpy(half_bits.data(), values.data(), sizeof(values));
  std::vector<uint16_t> out(halves.size());
  ConvertToFloat(DType::kF16, source, absl::MakeSpan(halves));
  ConvertToBf16(DType::kF16, source, absl::MakeSpan(out));
  for (size_t i = 0; i < out.size(); ++i) {
    EXPECT_EQ(std::bit_cast<uint32_t>(halves[i]),
              std::bit_cast<uint32_t>(F16ToFloat(half_bits[i])));
    EXPECT_EQ(out[i], F16ToBf16(half_bits[i]));
  }
  ConvertToBf16(DType::kBf16, source, absl::MakeSpan(out));
  EXPECT_EQ(out, half_bits);
  ConvertToFloat(DType::kBf16, source, absl::MakeSpan(halves));
  EXPECT_EQ(halves[3], Bf16ToFloat(half_bits[3]));
  ConvertToBf16(DType::kF32, {}, {});
}

TEST(FloatConvertDeathTest, RefusesOtherTypesAndSizes) {
  std::vector<std::byte> bytes(8);
  std::vector<float> floats(2);
  EXPECT_DEATH(ConvertToFloat(DType::kI32, bytes, absl::MakeSpan(floats)),
               "I32");
  EXPECT_DEATH(ConvertToFloat(DType::kF16, bytes, absl::MakeSpan(floats)), "");
}

}  // namespace
}  // namespace baton::engine
