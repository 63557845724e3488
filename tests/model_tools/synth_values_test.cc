#include "model_tools/synth_values.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "engine/float_convert.h"

namespace baton::model_tools {
namespace {

using engine::DType;

std::vector<float> Draw(const NormalValues& values, uint64_t seed,
                        const char* name, int64_t first, int64_t n) {
  std::vector<float> drawn(n);
  values.Fill(seed, name, first,
              absl::MakeSpan(reinterpret_cast<std::byte*>(drawn.data()),
                             drawn.size() * sizeof(float)));
  return drawn;
}

TEST(FloatToF16Test, InvertsTheExactConversion) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float value = engine::F16ToFloat(static_cast<uint16_t>(bits));
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(engine::F16ToFloat(FloatToF16(value))));
    } else {
      EXPECT_EQ(FloatToF16(value), bits);
    }
  }
}

TEST(FloatToF16Test, RoundsToNearestEven) {
  for (uint32_t bits = 0; bits < 0x7bff; ++bits) {
    const float low = engine::F16ToFloat(static_cast<uint16_t>(bits));
    const float high = engine::F16ToFloat(static_cast<uint16_t>(bits + 1));
    const float middle = low + (high - low) / 2;
    EXPECT_EQ(FloatToF16(middle), (bits + 1) / 2 * 2) << bits;
    EXPECT_EQ(FloatToF16(std::nextafter(middle, low)), bits);
    EXPECT_EQ(FloatToF16(std::nextafter(middle, high)), bits + 1);
  }
  EXPECT_EQ(FloatToF16(65519.0f), 0x7bff);
  EXPECT_EQ(FloatToF16(65520.0f), 0x7c00);
  EXPECT_EQ(FloatToF16(-1e30f), 0xfc00);
}

TEST(NormalValuesTest, HaveMeanAndDeviation) {
  const NormalValues values(DType::kF32, 1.0f, 0.5f);
  const std::vector<float> drawn = Draw(values, 1, "w", 0, 1 << 18);
  double sum = 0, squares = 0, beyond = 0;
  for (const float x : drawn) {
    sum += x;
    squares += (x - 1.0) * (x - 1.0);
    beyond += std::abs(x - 1.0f) > 2 * 0.5f;
  }
  const double n = static_cast<double>(drawn.size());
  EXPECT_NEAR(sum / n, 1.0, 0.005);
  EXPECT_NEAR(std::sqrt(squares / n), 0.5, 0.005);
  // Of a normal distribution, 4.55% lie beyond two deviations.
  EXPECT_NEAR(beyond / n, 0.0455, 0.002);
}

TEST(NormalValuesTest, DependOnSeedNameAndIndexOnly) {
  const NormalValues values(DType::kF32, 0.0f, 1.0f);
  const std::vector<float> all = Draw(values, 7, "w", 0, 1000);
  const std::vector<float> part = Draw(values, 7, "w", 504, 100);
  EXPECT_EQ(part,
            std::vector<float>(all.begin() + 504, all.begin() + 504 + 100));
  EXPECT_NE(all, Draw(values, 8, "w", 0, 1000));
  EXPECT_NE(all, Draw(values, 7, "v", 0, 1000));
  // Seeds that differ in the upper half only.
  EXPECT_NE(all, Draw(values, 7 | uint64_t{1} << 32, "w", 0, 1000));
}

TEST(NormalValuesTest, TypesHoldTheSameValuesRounded) {
  const std::vector<float> floats =
      Draw(NormalValues(DType::kF32, 0.0f, 0.02f), 3, "w", 0, 500);
  for (const DType dtype : {DType::kBf16, DType::kF16}) {
    std::vector<uint16_t> halves(floats.size());
    NormalValues(dtype, 0.0f, 0.02f)
        .Fill(3, "w", 0,
              absl::MakeSpan(reinterpret_cast<std::byte*>(halves.data()),
                             halves.size() * 2));
    for (size_t i = 0; i < floats.size(); ++i) {
      EXPECT_EQ(halves[i], dtype == DType::kBf16
                               ? engine::FloatToBf16(floats[i])
                               : FloatToF16(floats[i]));
    }
  }
}

}  // namespace
}  // namespace baton::model_tools
