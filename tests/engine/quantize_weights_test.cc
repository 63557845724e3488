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
    std::vector<uint8_t> bytes(weights.size());
    uint16_t code = 0;
    int4 = Add(int4, std::bit_cast<uint32_t>(
                         QuantizeInt4(weights, {}, bytes.data(), &code)));
    int4 = Add(int4, code);
    for (const uint8_t x : bytes) int4 = Add(int4, x);
    fp8 = Add(fp8, std::bit_cast<uint32_t>(QuantizeFp8(weights, bytes.data())));
    for (const uint8_t x : bytes) fp8 = Add(fp8, x);
  }
  EXPECT_EQ(kQuantizationVersion, 3);
  EXPECT_EQ(int8, 1814981682845118088u);
  EXPECT_EQ(int4, 9291436210226661812u);
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
  EXPECT_EQ(QuantizedIdentity("0123", "fp8"), "0123-fp8-3");
  EXPECT_EQ(QuantizedIdentity("0123", "int4"), "0123-int4-3");
}

// An output's weights as they are after QuantizeInt4.
std::vector<float> AsInt4(const std::vector<float>& weights,
                          const std::vector<Int4Grid>& grids = {}) {
  std::vector<uint8_t> q(weights.size(), 0xff);
  std::vector<uint16_t> codes((weights.size() + 63) / 64, 0xffff);
  const float scale = QuantizeInt4(weights, grids, q.data(), codes.data());
  std::vector<float> values;
  for (size_t i = 0; i < weights.size(); ++i) {
    EXPECT_LE(q[i], 15);
    const uint16_t code = codes[i / 64];
    values.push_back(static_cast<float>(q[i] - Int4Zero(code)) *
                     Int4Scale(code) * scale);
  }
  return values;
}

TEST(QuantizeWeightsTest, ScalesAreThoseOfBfloat16) {
  for (int32_t e = 0; e < 32; ++e) {
    for (int32_t m = 0; m < 128; ++m) {
      const auto code = static_cast<uint16_t>(e << 11 | m << 4 | (m & 15));
      EXPECT_EQ(Int4Scale(code),
                std::ldexp(1.0f + static_cast<float>(m) / 128.0f, e - 31));
      EXPECT_EQ(Int4Zero(code), m & 15);
    }
  }
}

// No grid of those that the least and the greatest weight suggest is better by
// much.
TEST(QuantizeWeightsTest, Int4FindsAGoodGrid) {
  double of_plain = 0.0;
  for (uint64_t seed = 0; seed < 50; ++seed) {
    const std::vector<float> weights = SomeWeights(seed);
    const auto error = [&](const std::vector<float>& values) {
      double sum = 0.0;
      for (size_t i = 0; i < weights.size(); ++i) {
        sum += std::pow(double{values[i]} - weights[i], 2);
      }
      return sum;
    };
    const double found = error(AsInt4(weights));
    const auto [least, greatest] =
        std::minmax_element(weights.begin(), weights.end());
    double best = found;
    for (int zero = 0; zero < 16; ++zero) {
      for (float share = 0.7f; share < 1.05f; share += 0.01f) {
        const Int4Grid grid = {(*greatest - *least) / 15.0f * share, zero};
        best = std::min(best, error(AsInt4(weights, {grid})));
      }
    }
    EXPECT_LT(found, 1.25 * best) << seed;
    // On the average it is better than one in the middle that spans all.
    const Int4Grid plain = {
        std::max(std::fabs(*least), std::fabs(*greatest)) / 7.5f, 8};
    of_plain += found / error(AsInt4(weights, {plain})) / 50.0;
  }
  EXPECT_LT(of_plain, 0.85);
}

TEST(QuantizeWeightsTest, OfNormalWeightsInt4IsOffByAnEleventh) {
  std::mt19937 bits(5);
  std::normal_distribution<float> normal;
  std::vector<float> weights(1 << 16);
  for (float& w : weights) w = normal(bits);
  const std::vector<float> values = AsInt4(weights);
  double errors = 0.0;
  double squares = 0.0;
  for (size_t i = 0; i < weights.size(); ++i) {
    errors += std::pow(double{values[i]} - weights[i], 2);
    squares += std::pow(double{weights[i]}, 2);
  }
  EXPECT_NEAR(std::sqrt(errors / squares), 0.088, 0.0005);
}

// What a GPTQ or AWQ checkpoint has, with scales of bfloat16 or of half, is not
// rounded again, but for the scale, where that is no bfloat16.
TEST(QuantizeWeightsTest, WeightsThatLieOnAGridStayOnIt) {
  std::mt19937 bits(3);
  for (int i = 0; i < 200; ++i) {
    const bool half = i % 2 == 1;
    std::vector<Int4Grid> grids;
    std::vector<float> weights;
    for (int group = 0; group < 3; ++group) {
      // A group may be larger than 64, and then not use all of its grid here.
      const int span = 1 + static_cast<int>(bits() % 16);
      const int first = static_cast<int>(bits()) % (17 - span);
      Int4Grid grid;
      grid.zero = static_cast<int>(bits() % 16);
      grid.scale =
          half ? F16ToFloat(static_cast<uint16_t>(0x1400 + bits() % 0x1000))
               : Bf16ToFloat(static_cast<uint16_t>(0x3c00 + bits() % 0x100));
      grids.push_back(grid);
      for (int k = 0; k < (group == 2 ? 40 : 64); ++k) {
        const int q = std::abs(first) + static_cast<int>(bits() % span);
        weights.push_back(static_cast<float>(q - grid.zero) * grid.scale);
      }
    }
    const std::vector<float> values = AsInt4(weights, grids);
    for (size_t k = 0; k < weights.size(); ++k) {
      if (half) {
        EXPECT_NEAR(values[k], weights[k], std::fabs(weights[k]) * 0x1p-8f);
      } else {
        EXPECT_EQ(values[k], weights[k]) << i << " " << k;
      }
    }
  }
}

// As if there were none.
TEST(QuantizeWeightsTest, GridsWithoutAScaleAreFound) {
  using Limits = std::numeric_limits<float>;
  const std::vector<float> weights = SomeWeights(4);
  for (const float scale : {0.0f, -0.1f, 1e-40f, Limits::infinity(),
                            Limits::quiet_NaN(), Limits::max()}) {
    EXPECT_EQ(AsInt4(weights, {{scale, 3}}), AsInt4(weights)) << scale;
  }
}

// Next to weights 2^31 times as large, and more, there is nothing left.
TEST(QuantizeWeightsTest, GroupsOfAnOutputMayBeFarApart) {
  for (const int apart : {-31, -32}) {
    std::vector<float> weights = SomeWeights(5);
    const std::vector<float> alone = AsInt4(weights);
    for (size_t i = 0; i < 64; ++i) {
      weights.push_back(std::ldexp(weights[i], apart));
    }
    const std::vector<float> values = AsInt4(weights);
    for (size_t i = 0; i < 64; ++i) {
      EXPECT_EQ(values[i], alone[i]);
      EXPECT_EQ(values[64 + i],
                apart == -31 ? std::ldexp(alone[i], apart) : 0.0f);
    }
  }
}

TEST(QuantizeWeightsTest, OneInt4ThatIsNotFiniteMakesTheOutputNaN) {
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(),
                          -std::numeric_limits<float>::infinity()}) {
    std::vector<float> weights(130, 0.5f);
    weights[129] = bad;
    for (const float value : AsInt4(weights)) EXPECT_TRUE(std::isnan(value));
  }
}

TEST(QuantizeWeightsTest, ZerosStayZero) {
  const std::vector<float> weights(64, 0.0f);
  std::vector<int8_t> q(64);
  EXPECT_EQ(QuantizeInt8(weights, q.data()), 0.0f);
  EXPECT_EQ(AsInt4(weights), weights);
  EXPECT_EQ(AsInt4(std::vector<float>(64, 1e-42f)), weights);
  std::vector<uint8_t> bytes(64, 1);
  EXPECT_EQ(QuantizeFp8(weights, bytes.data()), 0.0f);
  // Too small for the inverse of a scale.
  EXPECT_EQ(QuantizeFp8(std::vector<float>(64, 1e-42f), bytes.data()), 0.0f);
  EXPECT_EQ(bytes, std::vector<uint8_t>(64, 0));
}

}  // namespace
}  // namespace baton::engine
