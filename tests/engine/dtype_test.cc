#include "engine/dtype.h"

#include <gtest/gtest.h>

namespace baton::engine {
namespace {

TEST(DTypeTest, NamesSizesAndWeights) {
  EXPECT_STREQ(DTypeName(DType::kBf16), "BF16");
  EXPECT_STREQ(DTypeName(DType::kF8E4M3), "F8_E4M3");
  EXPECT_EQ(DTypeBytes(DType::kF8E5M2), 1);
  EXPECT_EQ(DTypeBytes(DType::kF16), 2);
  EXPECT_EQ(DTypeBytes(DType::kF32), 4);
  EXPECT_EQ(DTypeBytes(DType::kI64), 8);
  EXPECT_TRUE(IsWeightDType(DType::kBf16));
  EXPECT_TRUE(IsWeightDType(DType::kF16));
  EXPECT_TRUE(IsWeightDType(DType::kF32));
  EXPECT_FALSE(IsWeightDType(DType::kF64));
  EXPECT_FALSE(IsWeightDType(DType::kU8));
}

}  // namespace
}  // namespace baton::engine
