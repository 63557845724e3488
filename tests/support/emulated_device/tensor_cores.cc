#include "tests/support/emulated_device/tensor_cores.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

namespace baton::engine::cuda::emulated {
namespace {

int group_fraction_bits = kFractionBits;

// Of zeros and subnormal numbers, as bfloat16 and float32 have it.
constexpr int kLeastExponent = -126;

int BiasedExponent(float x) {
  return static_cast<int>(std::bit_cast<uint32_t>(x) >> 23 & 0xff);
}
int Exponent(float x) {
  return std::max(BiasedExponent(x) - 127, kLeastExponent);
}
bool IsFinite(float x) { return BiasedExponent(x) != 255; }

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

float TensorCoreStep(float sum, const float (&a)[kStepInputs],
                     const float (&b)[kStepInputs], int fraction_bits) {
  double products[kStepInputs];
  int greatest = Exponent(sum);
  bool finite = IsFinite(sum);
  for (int k = 0; k < kStepInputs; ++k) {
    products[k] = double{a[k]} * b[k];
    const int exponent =
        products[k] == 0 ? kLeastExponent : Exponent(a[k]) + Exponent(b[k]);
    greatest = std::max(greatest, exponent);
    finite &= IsFinite(a[k]) && IsFinite(b[k]);
  }
  if (!finite) {
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
