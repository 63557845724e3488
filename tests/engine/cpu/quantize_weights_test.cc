#include "engine/cpu/quantize_weights.h"

#include <bit>
#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

namespace baton::engine::cpu {
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
  for (uint64_t seed = 0; seed < 1000; ++seed) {
    const std::vector<float> weights = SomeWeights(seed);
    std::vector<int8_t> q(weights.size());
    int8 = Add(int8, std::bit_cast<uint32_t>(QuantizeInt8(weights, q.data())));
    for (const int8_t x : q) int8 = Add(int8, static_cast<uint32_t>(x));
    int4 = Add(int4, QuantizeInt4(weights, q.data()));
    for (const int8_t x : q) int4 = Add(int4, static_cast<uint32_t>(x));
  }
  EXPECT_EQ(kQuantizationVersion, 1);
  EXPECT_EQ(int8, 1814981682845118088u);
  EXPECT_EQ(int4, 3209035427798835911u);
}

TEST(QuantizeWeightsTest, ZerosStayZero) {
  const std::vector<float> weights(64, 0.0f);
  std::vector<int8_t> q(64);
  EXPECT_EQ(QuantizeInt8(weights, q.data()), 0.0f);
  EXPECT_EQ(QuantizeInt4(weights, q.data()), 0);
}

}  // namespace
}  // namespace baton::engine::cpu
