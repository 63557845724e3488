#include "engine/mxfp4_rows.h"

#include <vector>

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace baton::engine::mxfp4_rows_test
