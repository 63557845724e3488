#include "engine/e4m3.h"

#include <cmath>
#include <cstdint>
#include <limits>

#include <gtest/gtest.h>

namespace baton::engine {
namespace {

// As the standard says, by its parts.
double ValueOf(int byte) {
  const int exponent = byte >> 3 & 15;
  const int fraction = byte & 7;
  const double magnitude = exponent == 0
                               ? fraction * std::ldexp(1.0, -9)
                               : std::ldexp(8.0 + fraction, exponent - 10);
  return (byte & 0x80) != 0 ? -magnitude : magnitude;
}

TEST(E4m3Test, EveryByteHasItsValueAndComesBack) {
  for (int byte = 0; byte < 256; ++byte) {
    const float value = E4m3ToFloat(static_cast<uint8_t>(byte));
    if ((byte & 0x7f) == 0x7f) {
      EXPECT_TRUE(std::isnan(value)) << byte;
    } else {
      EXPECT_EQ(value, ValueOf(byte)) << byte;
      EXPECT_EQ(std::signbit(value), byte >= 0x80) << byte;
    }
    EXPECT_EQ(FloatToE4m3(value) & 0x7f, byte & 0x7f);
    if (!std::isnan(value)) {
      EXPECT_EQ(FloatToE4m3(value), byte);
    }
  }
  EXPECT_EQ(E4m3ToFloat(0x7e), kE4m3Max);
}

TEST(E4m3Test, RoundsToTheNearestAndTiesToEven) {
  for (int byte = 0; byte < 0x7e; ++byte) {
    const auto low = static_cast<float>(ValueOf(byte));
    const auto high = static_cast<float>(ValueOf(byte + 1));
    const float middle = (low + high) / 2;  // exact
    const int even = byte % 2 == 0 ? byte : byte + 1;
    EXPECT_EQ(FloatToE4m3(middle), even) << byte;
    EXPECT_EQ(FloatToE4m3(std::nextafter(middle, low)), byte) << byte;
    EXPECT_EQ(FloatToE4m3(std::nextafter(middle, high)), byte + 1) << byte;
    EXPECT_EQ(FloatToE4m3(-middle), even | 0x80) << byte;
  }
}

TEST(E4m3Test, BeyondTheRangeIsTheLargest) {
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(FloatToE4m3(449.0f), 0x7e);
  EXPECT_EQ(FloatToE4m3(-1e30f), 0xfe);
  EXPECT_EQ(FloatToE4m3(infinity), 0x7e);
  EXPECT_EQ(FloatToE4m3(1e-30f), 0);
}

}  // namespace
}  // namespace baton::engine
