#include "engine/cuda/weight_tiles.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "engine/cuda/weight_format.h"
#include "engine/weight_matrix.h"
#include "tests/engine/cuda/host_tiles.h"
#include "tests/engine/cuda/rounded_weights.h"

namespace baton::engine::cuda {
namespace {

class WeightTilesTest : public testing::TestWithParam<WeightFormat> {};

INSTANTIATE_TEST_SUITE_P(Formats, WeightTilesTest,
                         testing::ValuesIn(kWeightFormats),
                         [](const auto& param) {
                           return std::string(WeightFormatName(param.param));
                         });

// In bits, counted from the beginning of the tiles.
int64_t BitOf(const WeightPlace& place) { return place.byte * 8 + place.shift; }

TEST_P(WeightTilesTest, EveryElementHasAPlaceOfItsOwn) {
  constexpr int32_t kOutputs = 48;
  constexpr int32_t kInputs = 128;
  const int64_t bits = WeightBits(GetParam());
  std::set<int64_t> taken;
  const auto take = [&](int64_t begin, int64_t count) {
    EXPECT_GE(begin, 0);
    EXPECT_LE(begin + count, 3 * TileBytes(GetParam(), kInputs) * 8);
    EXPECT_EQ(begin % count, 0);
    for (int64_t bit = begin; bit < begin + count; ++bit) {
      EXPECT_TRUE(taken.insert(bit).second) << bit;
    }
  };
  for (int32_t o = 0; o < kOutputs; ++o) {
    for (int32_t i = 0; i < kInputs; ++i) {
      take(BitOf(PlaceOfWeight(GetParam(), o, i, kInputs)), bits);
    }
    if (!HasSliceGrids(GetParam())) continue;
    for (int32_t i = 0; i < kInputs; i += kSliceInputs) {
      const int64_t at = PlaceOfSliceGrid(GetParam(), o, i, kInputs);
      EXPECT_EQ(PlaceOfSliceGrid(GetParam(), o, i + 63, kInputs), at);
      take(at * 8, 16);
    }
  }
  // Nothing is left over.
  EXPECT_EQ(static_cast<int64_t>(taken.size()),
            3 * TileBytes(GetParam(), kInputs) * 8);
}

// As the header says, for a lane in the middle.
TEST(WeightTilesLayoutTest, LanesHoldWhatTheHeaderSays) {
  constexpr int32_t kInputs = 192;
  const int32_t g = 5;
  const int32_t c = 2;
  const int64_t lane = (g * 4 + c) * 16;
  const auto place = [&](WeightFormat format, int32_t output, int32_t input) {
    // The third tile, its second slice.
    const int64_t slice = 2 * TileBytes(format, kInputs) + SliceBytes(format);
    const WeightPlace at =
        PlaceOfWeight(format, 32 + output, 64 + input, kInputs);
    return BitOf(at) - 8 * (slice + lane);
  };
  for (int32_t h = 0; h < 2; ++h) {
    for (int32_t s = 0; s < 2; ++s) {
      const int32_t input = 32 * h + 8 * c + 4 * s;
      const int64_t bf16 = (2 * h + s) * 512 * 8;
      EXPECT_EQ(place(WeightFormat::kBf16, g, input), bf16);
      EXPECT_EQ(place(WeightFormat::kBf16, g, input + 1), bf16 + 16);
      EXPECT_EQ(place(WeightFormat::kBf16, g + 8, input), bf16 + 32);
      EXPECT_EQ(place(WeightFormat::kBf16, g, input + 2), bf16 + 64);
      EXPECT_EQ(place(WeightFormat::kBf16, g + 8, input + 3), bf16 + 112);
      for (const WeightFormat format :
           {WeightFormat::kFp8, WeightFormat::kInt8}) {
        const int64_t bytes = (h * 512 + s * 8) * 8;
        EXPECT_EQ(place(format, g, input), bytes);
        EXPECT_EQ(place(format, g, input + 1), bytes + 16);
        EXPECT_EQ(place(format, g + 8, input), bytes + 8);
        EXPECT_EQ(place(format, g, input + 2), bytes + 32);
        EXPECT_EQ(place(format, g + 8, input + 3), bytes + 56);
      }
      const int64_t nibbles = (2 * h + s) * 32;
      EXPECT_EQ(place(WeightFormat::kInt4, g, input), nibbles);
      EXPECT_EQ(place(WeightFormat::kInt4, g, input + 1), nibbles + 16);
      EXPECT_EQ(place(WeightFormat::kInt4, g + 8, input), nibbles + 4);
      EXPECT_EQ(place(WeightFormat::kInt4, g, input + 2), nibbles + 8);
      EXPECT_EQ(place(WeightFormat::kInt4, g + 8, input + 3), nibbles + 28);
    }
  }
  EXPECT_EQ(SliceBytes(WeightFormat::kInt4), 512 + 32);
  EXPECT_EQ(PlaceOfSliceGrid(WeightFormat::kInt4, 5, 64, kInputs),
            544 + 512 + 20);
  EXPECT_EQ(PlaceOfSliceGrid(WeightFormat::kInt4, 13, 64, kInputs),
            544 + 512 + 22);
}

// A view of `values`.
WeightMatrix Matrix(int64_t rows, int32_t inputs,
                    const std::vector<float>& values) {
  WeightMatrix m;
  m.rows = rows;
  m.columns = inputs;
  m.values.dtype = DType::kF32;
  m.values.shape = {rows, inputs};
  m.values.bytes =
      absl::MakeSpan(reinterpret_cast<const std::byte*>(values.data()),
                     values.size() * sizeof(float));
  return m;
}

TEST_P(WeightTilesTest, PacksRowsOfSeveralMatricesAndPadsWithZeros) {
  constexpr int32_t kInputs = 70;
  const auto make = [](int64_t rows, float first) {
    std::vector<float> values;
    for (int64_t i = 0; i < rows * kInputs; ++i) {
      values.push_back(std::sin(first + static_cast<float>(i)));
    }
    return values;
  };
  const std::vector<float> a_values = make(10, 0.0f);
  const std::vector<float> b_values = make(9, 0.3f);
  const WeightMatrix a = Matrix(10, kInputs, a_values);
  const WeightMatrix b = Matrix(9, kInputs, b_values);
  // Rows 2 to 8 of one, then a gap of 4, then all of the other.
  const std::vector<OutputRows> rows = {
      {&a, 2, 7}, {nullptr, 0, 4}, {&b, 0, 9}};
  const int32_t padded = PaddedInputs(kInputs);
  ASSERT_EQ(padded, 128);
  const int64_t tile_bytes = TileBytes(GetParam(), padded);
  std::vector<std::byte> out(2 * tile_bytes, std::byte{0xff});
  std::vector<float> scales(32, NAN);
  PackTiles(GetParam(), rows, kInputs, 0, 2, out.data(), scales.data());
  for (int32_t o = 0; o < 32; ++o) {
    std::vector<float> row(kInputs, 0.0f);
    if (o < 7) {
      row.assign(&a_values[(o + 2) * kInputs], &a_values[(o + 3) * kInputs]);
    } else if (o >= 11 && o < 20) {
      row.assign(b_values.data() + (o - 11) * kInputs,
                 b_values.data() + (o - 10) * kInputs);
    }
    const std::vector<float> expected = RoundedRow(GetParam(), row);
    for (int32_t i = 0; i < padded; ++i) {
      ASSERT_EQ(ReadWeight(GetParam(), out.data(), scales.data(), o, i, padded),
                i < kInputs ? expected[i] : 0.0f)
          << o << " " << i;
    }
  }
  // A part of it is the same.
  std::vector<std::byte> second(tile_bytes, std::byte{0xff});
  std::vector<float> second_scales(16, NAN);
  PackTiles(GetParam(), rows, kInputs, 1, 1, second.data(),
            second_scales.data());
  EXPECT_TRUE(
      std::equal(second.begin(), second.end(), out.begin() + tile_bytes));
  if (HasOutputScales(GetParam())) {
    EXPECT_TRUE(std::equal(second_scales.begin(), second_scales.end(),
                           scales.begin() + 16));
  }
}

// What is broken in a file must not come out as numbers.
TEST_P(WeightTilesTest, AWeightThatIsNotFiniteShows) {
  constexpr int32_t kInputs = 64;
  std::vector<float> values(2 * kInputs, 0.5f);
  values[kInputs + 3] = NAN;
  const WeightMatrix m = Matrix(2, kInputs, values);
  std::vector<std::byte> out(TileBytes(GetParam(), kInputs));
  std::vector<float> scales(16);
  PackTiles(GetParam(), {{&m, 0, 2}}, kInputs, 0, 1, out.data(), scales.data());
  const auto read = [&](int32_t output, int32_t input) {
    return ReadWeight(GetParam(), out.data(), scales.data(), output, input,
                      kInputs);
  };
  EXPECT_TRUE(std::isnan(read(1, 3)));
  EXPECT_NEAR(read(0, 3), 0.5f, 0.01f);
}

TEST(WeightFormatTest, NamesAndBack) {
  for (const WeightFormat format : kWeightFormats) {
    EXPECT_EQ(ParseWeightFormat(WeightFormatName(format)), format);
  }
  EXPECT_EQ(ParseWeightFormat("auto"), std::nullopt);
}

// Of all rows that there is memory for, every element has a place of its own; a
// step's inputs are those that a lane's words of weights have; and what eight
// lanes read of eight rows lies in other banks.
TEST(StagedInputsTest, EveryElementHasAPlaceOfItsOwn) {
  constexpr int32_t kRows = 2 * kStagedRows;
  constexpr int32_t kInputs = 192;
  std::vector<bool> taken(kRows * kInputs);
  for (int32_t row = 0; row < kRows; ++row) {
    for (int32_t i = 0; i < kInputs; ++i) {
      const int64_t place = PlaceOfInput(InputOrder::kStaged, row, i, kInputs);
      ASSERT_TRUE(place >= 0 && place < kRows * kInputs) << row << " " << i;
      ASSERT_FALSE(taken[place]) << row << " " << i;
      taken[place] = true;
      // 128 rows of a slice are one piece of memory.
      EXPECT_EQ(
          place / (kStagedRows * kSliceInputs),
          row / kStagedRows * (kInputs / kSliceInputs) + i / kSliceInputs);
      EXPECT_EQ(place / kSliceInputs % kStagedRows, row % kStagedRows);
    }
  }
  // The first step of row 0 and of row 3: inputs 0, 1, 8, 9, ... of the first
  // half, then 2, 3, 10, 11, ...
  EXPECT_EQ(PlaceOfInput(InputOrder::kStaged, 0, 8, kInputs), 2);
  EXPECT_EQ(PlaceOfInput(InputOrder::kStaged, 0, 2, kInputs), 8);
  EXPECT_EQ(PlaceOfInput(InputOrder::kStaged, 0, 4, kInputs), 16);
  EXPECT_EQ(PlaceOfInput(InputOrder::kStaged, 3, 0, kInputs),
            3 * kSliceInputs + 3 * 8);
  EXPECT_EQ(PlaceOfInput(InputOrder::kNatural, 3, 5, 200), 605);
  EXPECT_EQ(StagedRows(1), 128);
  EXPECT_EQ(StagedRows(256), 256);
}

}  // namespace
}  // namespace baton::engine::cuda
