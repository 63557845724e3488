#include "engine/mxfp4_rows.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <vector>

#include <gtest/gtest.h>

#include "engine/e4m3.h"
#include "engine/float_convert.h"
#include "tests/engine/mxfp4_matrix.h"

namespace baton::engine::mxfp4_rows_test {
namespace {

// What is copied is what is read, and what lies there.
void ExpectRows(const WeightMatrix& view, const Mxfp4Matrix& matrix,
                int64_t first, int64_t stride) {
  ASSERT_TRUE(HasMxfp4(view));
  const int64_t groups = view.columns / kMxfp4Group;
  std::vector<uint8_t> codes(view.columns), exponents(groups);
  std::vector<float> floats(view.columns);
  for (int64_t row = 0; row < view.rows; ++row) {
    CopyMxfp4Row(view, row, codes.data(), exponents.data());
    const int64_t stored = first + row * stride;
    EXPECT_TRUE(std::equal(codes.begin(), codes.end(),
                           matrix.codes.begin() + stored * view.columns));
    EXPECT_TRUE(std::equal(exponents.begin(), exponents.end(),
                           matrix.exponents.begin() + stored * groups));
    ReadRow(view, row, absl::MakeSpan(floats));
    for (int64_t k = 0; k < view.columns; ++k) {
      const uint16_t bits = Mxfp4ToBf16(codes[k], exponents[k / kMxfp4Group]);
      ASSERT_EQ(bits, FloatToBf16(floats[k])) << row << " " << k;
      ASSERT_EQ(Bf16ToFloat(bits), floats[k]) << row << " " << k;
    }
  }
}

TEST(Mxfp4RowsTest, AreThoseOfFiles) {
  for (const int exponent : {kLeastMxfp4Exponent, 118, 245}) {
    Mxfp4Matrix matrix(6, 96, 1, exponent);
    ExpectRows(matrix.View(), matrix, 0, 1);
    ExpectRows(matrix.EveryOther(0), matrix, 0, 2);
    ExpectRows(matrix.EveryOther(1), matrix, 1, 2);
    ExpectRows(matrix.GgufView(), matrix, 0, 1);
  }
}

TEST(Mxfp4RowsTest, OtherMatricesAreNone) {
  Mxfp4Matrix matrix(2, 32, 1);
  WeightMatrix view = matrix.GgufView();
  // Rows of heads that lie in another order.
  view.interleaved_head = 2;
  EXPECT_FALSE(HasMxfp4(view));
  for (const WeightEncoding encoding :
       {WeightEncoding::kPlain, WeightEncoding::kByInput,
        WeightEncoding::kGgufQ4_0, WeightEncoding::kPacked}) {
    view = matrix.View();
    view.encoding = encoding;
    EXPECT_FALSE(HasMxfp4(view)) << WeightEncodingName(encoding);
  }
}

std::vector<float> AsE4m3(const WeightMatrix& view) {
  EXPECT_EQ(StoredType(view), DType::kF8E4M3);
  EXPECT_TRUE(ScalesOutputs(view));
  std::vector<std::byte> bytes(view.rows * view.columns);
  // In two parts.
  CopyRows(view, 0, 1, bytes.data());
  CopyRows(view, 1, view.rows - 1, bytes.data() + view.columns);
  std::vector<float> values;
  for (size_t i = 0; i < bytes.size(); ++i) {
    values.push_back(E4m3ToFloat(std::to_integer<uint8_t>(bytes[i])) *
                     RowScale(view, i / view.columns));
  }
  return values;
}

std::vector<float> Floats(const WeightMatrix& view) {
  std::vector<float> values(view.rows * view.columns);
  ReadRows(view, 0, view.rows, absl::MakeSpan(values));
  return values;
}

TEST(Mxfp4RowsTest, AreE4m3WhereExponentsAreNearEnough) {
  for (const int exponent : {7, 118, 245}) {
    Mxfp4Matrix matrix(6, 96, 2, exponent);
    // As far apart as may be, in one row.
    matrix.exponents[3] = static_cast<uint8_t>(exponent < 100 ? 21 : 114);
    matrix.exponents[4] = static_cast<uint8_t>(exponent < 100 ? 7 : 128);
    matrix.exponents[5] = matrix.exponents[4];
    for (const WeightMatrix& view :
         {matrix.View(), matrix.EveryOther(0), matrix.GgufView()}) {
      EXPECT_EQ(AsE4m3(view), Floats(view)) << exponent;
    }
  }
}

TEST(Mxfp4RowsTest, AreNoE4m3WhereSomethingWouldBeLost) {
  const auto type_with = [](uint8_t a, uint8_t b, bool zeros) {
    Mxfp4Matrix matrix(2, 64, 3);
    matrix.exponents[2] = a;
    matrix.exponents[3] = b;
    if (zeros) std::fill_n(matrix.codes.begin() + 64, 32, uint8_t{8});
    const WeightMatrix view = matrix.View();
    const std::optional<DType> type = StoredType(view);
    if (type.has_value()) {
      EXPECT_EQ(AsE4m3(view), Floats(view));
    }
    return type;
  };
  EXPECT_TRUE(type_with(110, 124, false).has_value());
  EXPECT_FALSE(type_with(109, 124, false).has_value());
  EXPECT_FALSE(type_with(124, 109, false).has_value());
  // Zeros are there in any scale.
  EXPECT_TRUE(type_with(0, 124, true).has_value());
  EXPECT_FALSE(type_with(124, 255, false).has_value());
  EXPECT_FALSE(type_with(124, 253, true).has_value());
  EXPECT_FALSE(type_with(6, 6, false).has_value());
  EXPECT_TRUE(type_with(7, 7, false).has_value());
}

}  // namespace
}  // namespace baton::engine::mxfp4_rows_test
