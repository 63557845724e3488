#include "model_tools/synth_values.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>

#include "common/log.h"
#include "engine/float_convert.h"
#include "engine/philox.h"

namespace baton::model_tools {
namespace {

using engine::DType;

constexpr int32_t kQuantiles = 1 << 16;

// The z with P(Z <= z) = p, for p < 1/2, by Newton's method. The function is
// convex below 0, so from 0 on the steps never jump over the root.
double LowerNormalQuantile(double p) {
  constexpr double kRootHalf = 0.70710678118654752440;
  constexpr double kDensity = 0.39894228040143267794;
  double z = 0.0;
  for (int i = 0; i < 50; ++i) {
    const double error = 0.5 * std::erfc(-z * kRootHalf) - p;
    const double step = error / (kDensity * std::exp(-0.5 * z * z));
    z -= step;
    if (std::abs(step) < 1e-12) break;
  }
  return z;
}

const std::vector<float>& StandardNormal() {
  static const auto* const values = [] {
    auto* quantiles = new std::vector<float>(kQuantiles);
    for (int32_t i = 0; i < kQuantiles / 2; ++i) {
      const double z = LowerNormalQuantile((i + 0.5) / kQuantiles);
      (*quantiles)[i] = static_cast<float>(z);
      (*quantiles)[kQuantiles - 1 - i] = static_cast<float>(-z);
    }
    return quantiles;
  }();
  return *values;
}

// 64-bit FNV-1a.
uint64_t HashName(absl::string_view name) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : name) {
    hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3;
  }
  return hash;
}

// The 128 random bits of a draw.
std::array<uint32_t, 4> RandomBits(uint64_t seed, uint64_t tensor,
                                   uint64_t draw) {
  return engine::Philox4x32(
      {static_cast<uint32_t>(draw), static_cast<uint32_t>(draw >> 32),
       static_cast<uint32_t>(tensor), static_cast<uint32_t>(tensor >> 32)},
      {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
}

}  // namespace

void FillRandom(uint64_t seed, absl::string_view name, int64_t first,
                absl::Span<std::byte> out) {
  CHECK_EQ(first % kRandomGranule, 0);
  const uint64_t tensor = HashName(name);
  auto draw = static_cast<uint64_t>(first / kRandomGranule);
  for (size_t i = 0; i < out.size(); i += kRandomGranule, ++draw) {
    const std::array<uint32_t, 4> bits = RandomBits(seed, tensor, draw);
    static_assert(sizeof(bits) == kRandomGranule);
    std::memcpy(out.data() + i, bits.data(),
                std::min(sizeof(bits), out.size() - i));
  }
}

uint16_t FloatToF16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint16_t>(bits >> 16 & 0x8000u);
  const float magnitude = std::abs(value);
  if (std::isnan(magnitude)) return sign | 0x7e00u;
  // Halfway between the largest half and what would come next.
  if (magnitude >= 65520.0f) return sign | 0x7c00u;
  // Subnormal halves count in units of 2^-24; adding 1/2 to a float below it
  // rounds at exactly that unit.
  if (magnitude < 0x1p-14f) {
    return sign | static_cast<uint16_t>(
                      std::bit_cast<uint32_t>(magnitude + 0.5f) - 0x3f000000u);
  }
  const uint32_t rounded =
      (bits & 0x7fffffffu) + 0xfffu + (bits >> 13 & 1u) - (112u << 23);
  return sign | static_cast<uint16_t>(rounded >> 13);
}

NormalValues::NormalValues(DType dtype, float center, float spread) {
  CHECK(engine::IsWeightDType(dtype)) << engine::DTypeName(dtype);
  for (const float z : StandardNormal()) {
    const float value = center + spread * z;
    if (dtype == DType::kF32) {
      floats_.push_back(value);
    } else {
      halves_.push_back(dtype == DType::kBf16 ? engine::FloatToBf16(value)
                                              : FloatToF16(value));
    }
  }
}

template <typename T>
void NormalValues::FillAs(const std::vector<T>& values, uint64_t seed,
                          absl::string_view name, int64_t first,
                          absl::Span<std::byte> out) const {
  CHECK_EQ(first % kGranule, 0);
  CHECK_EQ(out.size() % sizeof(T), 0u);
  const uint64_t tensor = HashName(name);
  const size_t n = out.size() / sizeof(T);
  auto draw = static_cast<uint64_t>(first / kGranule);
  for (size_t i = 0; i < n; i += kGranule, ++draw) {
    const std::array<uint32_t, 4> bits = RandomBits(seed, tensor, draw);
    T granule[kGranule];
    for (int j = 0; j < 4; ++j) {
      granule[2 * j] = values[bits[j] & 0xffffu];
      granule[2 * j + 1] = values[bits[j] >> 16];
    }
    const size_t count = std::min<size_t>(kGranule, n - i);
    std::memcpy(out.data() + i * sizeof(T), granule, count * sizeof(T));
  }
}

void NormalValues::Fill(uint64_t seed, absl::string_view name, int64_t first,
                        absl::Span<std::byte> out) const {
  if (!floats_.empty()) {
    FillAs(floats_, seed, name, first, out);
  } else {
    FillAs(halves_, seed, name, first, out);
  }
}

}  // namespace baton::model_tools
