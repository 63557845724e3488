#include "engine/cuda/weight_tiles.h"

#include <algorithm>
#include <cstddef>
#include <set>
#include <vector>

#include <gtest/gtest.h>

#include "engine/cuda/device_weights.h"
#include "engine/float_convert.h"
#include "engine/weight_matrix.h"

namespace baton::engine::cuda {
namespace {

TEST(WeightTilesTest, EveryElementHasAPlaceOfItsOwn) {
  constexpr int32_t kOutputs = 48;
  constexpr int32_t kInputs = 128;
  std::set<int64_t> places;
  for (int32_t o = 0; o < kOutputs; ++o) {
    for (int32_t i = 0; i < kInputs; ++i) {
      const int64_t place = WeightPlace(o, i, kInputs);
      EXPECT_GE(place, 0);
      EXPECT_LT(place, kOutputs * kInputs);
      EXPECT_TRUE(places.insert(place).second) << o << " " << i;
    }
  }
}

// As the header says, for a lane in the middle.
TEST(WeightTilesTest, LanesHoldWhatTheHeaderSays) {
  constexpr int32_t kInputs = 192;
  const int32_t g = 5;
  const int32_t c = 2;
  const int64_t lane = (g * 4 + c) * 8;
  const int64_t tile = 2 * 16 * kInputs;     // the third
  const int64_t group = 3 * kGroupElements;  // the fourth of its tile
  for (int32_t step = 0; step < 2; ++step) {
    const int64_t at = tile + group + step * kStepElements + lane;
    const int32_t input = 3 * 32 + 8 * c + 4 * step;
    EXPECT_EQ(WeightPlace(32 + g, input, kInputs), at);
    EXPECT_EQ(WeightPlace(32 + g, input + 1, kInputs), at + 1);
    EXPECT_EQ(WeightPlace(32 + g + 8, input, kInputs), at + 2);
    EXPECT_EQ(WeightPlace(32 + g, input + 2, kInputs), at + 4);
    EXPECT_EQ(WeightPlace(32 + g + 8, input + 3, kInputs), at + 7);
  }
}

TEST(WeightTilesTest, PacksRowsOfSeveralMatricesAndPadsWithZeros) {
  constexpr int32_t kInputs = 70;
  const auto make = [](int64_t rows, float first, std::vector<float>* values) {
    for (int64_t i = 0; i < rows * kInputs; ++i) {
      values->push_back(first + static_cast<float>(i % 100));
    }
    WeightMatrix m;
    m.rows = rows;
    m.columns = kInputs;
    m.values.dtype = DType::kF32;
    m.values.shape = {rows, kInputs};
    m.values.bytes =
        absl::MakeSpan(reinterpret_cast<const std::byte*>(values->data()),
                       values->size() * sizeof(float));
    return m;
  };
  std::vector<float> a_values, b_values;
  const WeightMatrix a = make(10, 0.0f, &a_values);
  const WeightMatrix b = make(9, 100.0f, &b_values);
  // Rows 2 to 8 of one, then a gap of 4, then all of the other.
  const std::vector<OutputRows> rows = {
      {&a, 2, 7}, {nullptr, 0, 4}, {&b, 0, 9}};
  const int32_t padded = PaddedInputs(kInputs);
  ASSERT_EQ(padded, 128);
  std::vector<uint16_t> out(2 * 16 * padded, 0xffff);
  PackTiles(rows, kInputs, 0, 2, out.data());
  for (int32_t o = 0; o < 32; ++o) {
    for (int32_t i = 0; i < padded; ++i) {
      float expected = 0.0f;
      if (i < kInputs && o < 7) expected = a_values[(o + 2) * kInputs + i];
      if (i < kInputs && o >= 11 && o < 20) {
        expected = b_values[(o - 11) * kInputs + i];
      }
      ASSERT_EQ(out[WeightPlace(o, i, padded)], FloatToBf16(expected))
          << o << " " << i;
    }
  }
  // A part of it is the same.
  std::vector<uint16_t> second(16 * padded, 0xffff);
  PackTiles(rows, kInputs, 1, 1, second.data());
  EXPECT_TRUE(
      std::equal(second.begin(), second.end(), out.begin() + 16 * padded));
}

}  // namespace
}  // namespace baton::engine::cuda
