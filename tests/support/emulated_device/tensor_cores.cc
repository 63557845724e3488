#include "tests/support/emulated_device/tensor_cores.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

namespace baton::engine::cuda::emulated {

// Compiled for the vectors of newer CPUs as well, where the loader can choose:
// not with AddressSanitizer, which is not ready when it does.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__SANITIZE_ADDRESS__)
#define BATON_FOR_MORE_CHIPS __attribute__((target_clones("avx2", "default")))
#else
#define BATON_FOR_MORE_CHIPS
#endif

namespace {

int group_fraction_bits = kFractionBits;

// Of zeros and subnormal numbers, as bfloat16 and float32 have it.
constexpr int kLeastExponent = -126;
// The biased exponent of infinities and NaN.
constexpr int kNotFinite = 255;

int BiasedExponent(float x) {
  return static_cast<int>(std::bit_cast<uint32_t>(x) >> 23 & 0xff);
}
int Exponent(float x) {
  return std::max(BiasedExponent(x) - 127, kLeastExponent);
}
bool IsZero(float x) { return std::bit_cast<uint32_t>(x) << 1 == 0; }

// 2^n, for n that a double has.
double PowerOfTwo(int n) {
  return std::bit_cast<double>(static_cast<uint64_t>(1023 + n) << 52);
}

float TowardsZero(double x) {
  const auto nearest = static_cast<float>(x);
  if (std::abs(static_cast<double>(nearest)) <= std::abs(x)) return nearest;
  if (std::abs(x) >= 0x1p128) return nearest;  // infinity
  return std::bit_cast<float>(std::bit_cast<uint32_t>(nearest) - 1);
}

}  // namespace

// Most of the time of tests on the emulated device goes here.
BATON_FOR_MORE_CHIPS
float TensorCoreStep(float sum, const float (&a)[kStepInputs],
                     const float (&b)[kStepInputs], int fraction_bits) {
  double products[kStepInputs];
  int greatest = Exponent(sum);
  int greatest_biased = BiasedExponent(sum);
  for (int k = 0; k < kStepInputs; ++k) {
    products[k] = double{a[k]} * b[k];
  }
  // Loops of their own, without branches, for vectors.
  for (int k = 0; k < kStepInputs; ++k) {
    const int exponent = Exponent(a[k]) + Exponent(b[k]);
    const bool zero = IsZero(a[k]) | IsZero(b[k]);
    greatest = std::max(greatest, zero ? kLeastExponent : exponent);
  }
  for (int k = 0; k < kStepInputs; ++k) {
    greatest_biased = std::max(
        greatest_biased, std::max(BiasedExponent(a[k]), BiasedExponent(b[k])));
  }
  if (greatest_biased == kNotFinite) {
    double total = sum;
    for (const double product : products) total += product;
    return static_cast<float>(total);
  }
  // Below 2^28 each: a conversion to an integer cuts off.
  const double scale = PowerOfTwo(fraction_bits - greatest);
  int64_t total = static_cast<int32_t>(sum * scale);
  for (const double product : products) {
    total += static_cast<int32_t>(product * scale);
  }
  return TowardsZero(static_cast<double>(total) *
                     PowerOfTwo(greatest - fraction_bits));
}

void SetGroupFractionBits(int bits) { group_fraction_bits = bits; }
int GroupFractionBits() { return group_fraction_bits; }

}  // namespace baton::engine::cuda::emulated
