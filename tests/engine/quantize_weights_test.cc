#include "engine/quantize_weights.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "engine/e4m3.h"
#include "engine/float_convert.h"

namespace baton::engine {
namespace {

// Of [-1, 1), of many sizes, the same on every machine.
std::vector<float> SomeWeights(uint64_t seed) {
  std::vector<float> weights(64);
  for (float& w : weights) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    const int32_t sized = static_cast<int32_t>(seed >> 32) >> (seed >> 28 & 7);
    w = static_cast<float>(sized) * 0x1p-31f;
  }
  return weights;
}

// FNV-1a.
uint64_t Add(uint64_t hash, uint32_t word) {
  for (int i = 0; i < 4; ++i) {
    hash = (hash ^ (word >> 8 * i & 0xff)) * 0x100000001b3u;
  }
  return hash;
}

// Directories of packed weights outlive the program that wrote them: where this
// fails, kQuantizationVersion must rise.
TEST(QuantizeWeightsTest, TheBitsGoWithTheVersion) {
  uint64_t int8 = 0xcbf29ce484222325u;
  uint64_t int4 = int8;
  uint64_t fp8 = int8;
  for (uint64_t seed = 0; seed < 1000; ++seed) {
    const std::vector<float> weights = SomeWeights(seed);
    std::vector<int8_t> q(weights.size());
    int8 = Add(int8, std::bit_cast<uint32_t>(QuantizeInt8(weights, q.data())));
    for (const int8_t x : q) int8 = Add(int8, static_cast<uint32_t>(x));
    int4 = Add(int4, QuantizeInt4(weights, q.data()));
    for (const int8_t x : q) int4 = Add(int4, static_cast<uint32_t>(x));
    std::vector<uint8_t> bytes(weights.size());
    fp8 = Add(fp8, std::bit_cast<uint32_t>(QuantizeFp8(weights, bytes.data())));
    for (const uint8_t x : bytes) fp8 = Add(fp8, x);
  }
  EXPECT_EQ(kQuantizationVersion, 2);
  EXPECT_EQ(int8, 1814981682845118088u);
  EXPECT_EQ(int4, 6605043779128969967u);
  EXPECT_EQ(fp8, 11820498917185041814u);
}

TEST(QuantizeWeightsTest, Fp8IsTheNearestOfItsGrid) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const std::vector<float> weights = SomeWeights(seed);
    std::vector<uint8_t> q(weights.size());
    const float scale = QuantizeFp8(weights, q.data());
    float largest = 0.0f;
    for (const float w : weights) largest = std::max(largest, std::fabs(w));
    EXPECT_FLOAT_EQ(scale * 448.0f, largest);
    for (size_t i = 0; i < weights.size(); ++i) {
      const float error = std::fabs(scale * E4m3ToFloat(q[i]) - weights[i]);
      for (int byte = 0; byte < 256; ++byte) {
        if ((byte & 0x7f) == 0x7f) continue;  // NaN
        const float other =
            scale * E4m3ToFloat(static_cast<uint8_t>(byte)) - weights[i];
        // But for rounding of the division.
        EXPECT_LE(error, std::fabs(other) + 1e-6f * largest) << weights[i];
      }
    }
  }
}

TEST(QuantizeWeightsTest, WhatIsNotFiniteMakesTheScaleNaN) {
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(),
                          std::numeric_limits<float>::infinity()}) {
    std::vector<float> weights = SomeWeights(1);
    weights[7] = bad;
    std::vector<uint8_t> q(weights.size(), 0x7f);
    EXPECT_TRUE(std::isnan(QuantizeFp8(weights, q.data())));
    for (const uint8_t byte : q) EXPECT_NE(byte & 0x7f, 0x7f);
  }
}

TEST(QuantizeWeightsTest, IdentityNamesTheDtypeAndTheVersion) {
  EXPECT_EQ(QuantizedIdentity("0123", "bf16"), "0123");
  EXPECT_EQ(QuantizedIdentity("0123", "fp8"), "0123-fp8-2");
  EXPECT_EQ(QuantizedIdentity("0123", "int4"), "0123-int4-2");
}

// What a symmetric GPTQ checkpoint has, with scales of bfloat16 or of half, is
// not rounded again, but for the scale, where that is no bfloat16.
TEST(QuantizeWeightsTest, IntegersOfFourBitsAreFoundAgain) {
  std::mt19937 bits(3);
  std::uniform_int_distribution<int> integers(-7, 7);
  for (int i = 0; i < 200; ++i) {
    const bool half = i % 2 == 1;
    const float scale = half ? 0.01f + static_cast<float>(i) * 0x1p-11f
                             : Bf16ToFloat(static_cast<uint16_t>(0x3c00 + i));
    // The greatest of a group may lie in another 64 of it.
    constexpr int kGreatest[] = {-8, 7, -7, 6, -5};
    const int greatest = kGreatest[i % 5];
    std::vector<int> stored(64);
    for (int& q : stored) q = integers(bits) * std::abs(greatest) / 8;
    stored[i % 64] = greatest;
    std::vector<float> weights;
    for (const int q : stored) {
      weights.push_back(static_cast<float>(q) * scale);
    }
    std::vector<int8_t> q(64);
    const float found = Bf16ToFloat(QuantizeInt4(weights, q.data()));
    for (size_t k = 0; k < q.size(); ++k) {
      const float weight = static_cast<float>(q[k]) * found;
      if (half) {
        EXPECT_NEAR(weight, weights[k], std::fabs(weights[k]) * 0x1p-8f);
      } else {
        EXPECT_EQ(weight, weights[k]) << i << " " << k;
      }
    }
  }
}

TEST(QuantizeWeightsTest, ZerosStayZero) {
  const std::vector<float> weights(64, 0.0f);
  std::vector<int8_t> q(64);
  EXPECT_EQ(QuantizeInt8(weights, q.data()), 0.0f);
  EXPECT_EQ(QuantizeInt4(weights, q.data()), 0);
  std::vector<uint8_t> bytes(64, 1);
  EXPECT_EQ(QuantizeFp8(weights, bytes.data()), 0.0f);
  // Too small for the inverse of a scale.
  EXPECT_EQ(QuantizeFp8(std::vector<float>(64, 1e-42f), bytes.data()), 0.0f);
  EXPECT_EQ(bytes, std::vector<uint8_t>(64, 0));
}

}  // namespace
}  // namespace baton::engine
