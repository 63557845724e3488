// The sums of emulated tensor cores, bit by bit.
#include "tests/support/emulated_device/tensor_cores.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <limits>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "engine/float_convert.h"

namespace baton::engine::cuda::emulated {
namespace {

struct Factors {
  float a;
  float b;
};

// The step with these products, the rest zeros.
float Step(float sum, const std::vector<Factors>& products) {
  float a[kStepInputs] = {};
  float b[kStepInputs] = {};
  for (size_t i = 0; i < products.size(); ++i) {
    a[i] = products[i].a;
    b[i] = products[i].b;
  }
  return TensorCoreStep(sum, a, b);
}

TEST(TensorCoresTest, AddsExactlyWhatFits) {
  EXPECT_EQ(Step(0.5f, {{3, 4}, {-2, 0.25f}, {7, 1}}), 19.0f);
  EXPECT_EQ(Step(0, {}), 0.0f);
  EXPECT_EQ(Step(-3, {{1, 3}}), 0.0f);
}

TEST(TensorCoresTest, TermsAreCutBehind25Bits) {
  const float ulp = 0x1p-23f;
  // Four quarters of the last place.
  EXPECT_EQ(Step(1, std::vector<Factors>(4, {0x1p-25f, 1})), 1 + ulp);
  EXPECT_EQ(Step(-1, std::vector<Factors>(4, {0x1p-25f, -1})), -1 - ulp);
  // Sixteen sixteenths are gone.
  EXPECT_EQ(Step(1, std::vector<Factors>(16, {0x1p-13f, 0x1p-14f})), 1.0f);
  EXPECT_EQ(Step(1, {{-0x1p-26f, 1}}), 1.0f);
}

TEST(TensorCoresTest, WhatComesOutIsCutTowardsZero) {
  EXPECT_EQ(Step(1, std::vector<Factors>(3, {0x1p-25f, 1})), 1.0f);
  EXPECT_EQ(Step(-1, std::vector<Factors>(3, {0x1p-25f, -1})), -1.0f);
}

// The exponent of a product is the sum of its factors', also where the product
// is 2 or more.
TEST(TensorCoresTest, ProductsAreAlignedAsTheyAre) {
  EXPECT_EQ(Step(0, {{1.5f, 1.5f}, {-1.5f, 1.5f}, {0x1p-25f, 1}}), 0x1p-25f);
  EXPECT_EQ(Step(-2.25f, {{1.5f, 1.5f}, {0x1p-25f, 1}}), 0.0f);
}

TEST(TensorCoresTest, ZerosChangeNothing) {
  for (const float sum : {1.0f, -0x1.fffffep-3f, 0x1p-126f, 0x1p-149f, 0.0f}) {
    EXPECT_EQ(Step(sum, std::vector<Factors>(16, {0, 0x1p100f})), sum);
  }
}

TEST(TensorCoresTest, TheOrderWithinAStepDoesNotMatter) {
  std::mt19937 bits(5);
  std::normal_distribution<float> normal;
  const auto draw = [&] { return Bf16ToFloat(FloatToBf16(normal(bits))); };
  for (int round = 0; round < 1000; ++round) {
    std::vector<Factors> products;
    for (int k = 0; k < kStepInputs; ++k) products.push_back({draw(), draw()});
    const float sum = normal(bits) * 100;
    const float before = Step(sum, products);
    std::shuffle(products.begin(), products.end(), bits);
    EXPECT_EQ(Step(sum, products), before);
    double exact = sum;
    for (const Factors& f : products) exact += double{f.a} * f.b;
    // 17 terms cut at 2^-25 of a greatest one of 1,024 at most, and an ulp.
    EXPECT_NEAR(before, exact, 18 * 1024 * 0x1p-23);
  }
}

TEST(TensorCoresTest, WhatIsNotFiniteStaysSo) {
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(Step(infinity, {{1, 1}}), infinity);
  EXPECT_EQ(Step(1, {{-infinity, 1}}), -infinity);
  EXPECT_TRUE(std::isnan(Step(1, {{infinity, 0}})));
  EXPECT_TRUE(std::isnan(Step(std::nanf(""), {})));
  EXPECT_EQ(Step(0, {{0x1p127f, 2}}), infinity);
}

TEST(TensorCoresTest, SubnormalNumbersCount) {
  EXPECT_EQ(Step(0x1p-149f, {{0x1p-75f, 0x1p-74f}}), 0x1p-148f);
  EXPECT_EQ(Step(0, {{0x1p-133f, 1}}), 0x1p-133f);
}

// A bfloat16 of one of these kinds.
float Draw(int kind, std::mt19937& random) {
  uint32_t bits = random() & 0xffff0000;
  switch (kind) {
    case 0:  // of about 1
      return static_cast<float>(static_cast<int>(random() % 511) - 255) / 256;
    case 1:  // any at all, some not finite
      break;
    case 2:  // subnormal numbers, and small ones
      bits = (bits & 0x807f0000) | (random() % 40) << 23;
      break;
    case 3:  // zeros, and sums that overflow
      bits = random() % 3 == 0
                 ? 0
                 : (bits & 0x807f0000) |
                       (254 - static_cast<uint32_t>(random() % 60)) << 23;
      break;
  }
  return std::bit_cast<float>(bits);
}

TEST(TensorCoresTest, ManyStepsAtOnceAreTheSame) {
  constexpr int kRows = 16;
  constexpr int kColumns = 24;
  std::mt19937 random(7);
  float left[kRows][kStepInputs];
  float right[kColumns][kStepInputs];
  float sums[kRows * kColumns];
  float many[kRows * kColumns];
  for (int round = 0; round < 400; ++round) {
    const int kind = round % 4;
    for (auto& row : left) {
      for (float& x : row) x = Draw(kind, random);
    }
    for (auto& row : right) {
      for (float& x : row) x = Draw(kind, random);
    }
    for (float& sum : sums) sum = Draw(kind, random) * 1.2345f;
    for (const int bits : {kFractionBits, 23}) {
      // Of any number of columns, and with few rows.
      for (const int columns : {kColumns, 8, 6}) {
        const int rows = columns == 8 ? 2 : kRows;
        std::copy(std::begin(sums), std::end(sums), many);
        TensorCoreSteps(many, left, rows, right, columns, bits);
        for (int i = 0; i < rows * columns; ++i) {
          const float one = TensorCoreStep(sums[i], left[i / columns],
                                           right[i % columns], bits);
          if (std::isnan(one)) {
            ASSERT_TRUE(std::isnan(many[i]));
          } else {
            ASSERT_EQ(std::bit_cast<uint32_t>(many[i]),
                      std::bit_cast<uint32_t>(one))
                << kind << " " << i << ": " << many[i] << " " << one;
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace baton::engine::cuda::emulated
