#include "tests/support/emulated_device/tensor_cores.h"

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
#endif

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

#if defined(__x86_64__) && defined(__GNUC__)
namespace {

// Eight columns side by side. A product of two bfloat16 is one of integers of
// eight bits, which is moved to its place and cut there.
constexpr int kColumns = 8;
constexpr int kMaxRows = 16;
// Less than any product has.
constexpr int kZeroExponent = -1000;

// Operands' fractions with their signs, from `places` bits on, in the lower
// half of a word; and their exponents.
struct Parts {
  int32_t fractions[kColumns];
  int32_t exponents[kColumns];
};

// Of eight float32 that are bfloat16. Whether all are finite.
__attribute__((target("avx2"))) bool FindParts(const float (&x)[kColumns],
                                               int places, Parts& parts) {
  const __m256i bits = _mm256_castps_si256(_mm256_loadu_ps(x));
  const __m256i zero = _mm256_setzero_si256();
  const __m256i biased =
      _mm256_and_si256(_mm256_srli_epi32(bits, 23), _mm256_set1_epi32(0xff));
  const __m256i is_subnormal = _mm256_cmpeq_epi32(biased, zero);
  const __m256i fraction = _mm256_or_si256(
      _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(0x7f)),
      _mm256_andnot_si256(is_subnormal, _mm256_set1_epi32(0x80)));
  // The sign's bit is not that of zero.
  const __m256i is_signed =
      _mm256_sign_epi32(fraction, _mm256_or_si256(bits, _mm256_set1_epi32(1)));
  const __m256i moved =
      _mm256_and_si256(_mm256_sll_epi32(is_signed, _mm_cvtsi32_si128(places)),
                       _mm256_set1_epi32(0xffff));
  const __m256i exponent =
      _mm256_max_epi32(_mm256_sub_epi32(biased, _mm256_set1_epi32(127)),
                       _mm256_set1_epi32(kLeastExponent));
  const __m256i is_zero = _mm256_cmpeq_epi32(_mm256_slli_epi32(bits, 1), zero);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(parts.fractions), moved);
  _mm256_storeu_si256(
      reinterpret_cast<__m256i*>(parts.exponents),
      _mm256_blendv_epi8(exponent, _mm256_set1_epi32(kZeroExponent), is_zero));
  const __m256i infinite =
      _mm256_cmpeq_epi32(biased, _mm256_set1_epi32(kNotFinite));
  return _mm256_testz_si256(infinite, infinite) != 0;
}

__attribute__((target("avx2"))) __m256i Load(const int32_t (&x)[kColumns]) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x));
}

__attribute__((target("avx2"))) void StepsByEight(
    float* sums, const float (*left)[kStepInputs], int rows,
    const float (*right)[kStepInputs], int columns, int fraction_bits) {
  // Fractions of seven bits each, and these, are a term's before it is moved.
  constexpr int kPlaces = kFractionBits - 14;
  constexpr int kLeftPlaces = 7;
  static_assert(kStepInputs == 2 * kColumns);
  Parts left_parts[kMaxRows][2];
  bool left_finite[kMaxRows];
  for (int row = 0; row < rows; ++row) {
    left_finite[row] = true;
    for (int half = 0; half < 2; ++half) {
      float inputs[kColumns];
      std::copy_n(left[row] + half * kColumns, kColumns, inputs);
      left_finite[row] &= FindParts(inputs, kLeftPlaces, left_parts[row][half]);
    }
  }
  for (int column = 0; column < columns; column += kColumns) {
    float inputs[kStepInputs][kColumns];
    for (int n = 0; n < kColumns; ++n) {
      for (int k = 0; k < kStepInputs; ++k) inputs[k][n] = right[column + n][k];
    }
    Parts parts[kStepInputs];
    bool finite = true;
    for (int k = 0; k < kStepInputs; ++k) {
      finite &= FindParts(inputs[k], kPlaces - kLeftPlaces, parts[k]);
    }
    for (int row = 0; row < rows; ++row) {
      float* const to = sums + row * columns + column;
      const Parts* const of_left = left_parts[row];
      const __m256 before = _mm256_loadu_ps(to);
      const __m256i biased =
          _mm256_and_si256(_mm256_srli_epi32(_mm256_castps_si256(before), 23),
                           _mm256_set1_epi32(0xff));
      const __m256i infinite =
          _mm256_cmpeq_epi32(biased, _mm256_set1_epi32(kNotFinite));
      if (!finite || !left_finite[row] ||
          !_mm256_testz_si256(infinite, infinite)) {
        for (int n = 0; n < kColumns; ++n) {
          to[n] = TensorCoreStep(to[n], left[row], right[column + n],
                                 fraction_bits);
        }
        continue;
      }
      __m256i greatest =
          _mm256_max_epi32(_mm256_sub_epi32(biased, _mm256_set1_epi32(127)),
                           _mm256_set1_epi32(kLeastExponent));
      for (int k = 0; k < kStepInputs; ++k) {
        const __m256i exponent = _mm256_add_epi32(
            Load(parts[k].exponents),
            _mm256_set1_epi32(of_left[k / kColumns].exponents[k % kColumns]));
        greatest = _mm256_max_epi32(greatest, exponent);
      }
      // Sixteen terms below 2^27 each.
      __m256i total = _mm256_setzero_si256();
      const __m256i last = _mm256_add_epi32(
          greatest, _mm256_set1_epi32(kFractionBits - fraction_bits));
      for (int k = 0; k < kStepInputs; ++k) {
        const __m256i exponent = _mm256_add_epi32(
            Load(parts[k].exponents),
            _mm256_set1_epi32(of_left[k / kColumns].exponents[k % kColumns]));
        const __m256i product = _mm256_madd_epi16(
            Load(parts[k].fractions),
            _mm256_set1_epi32(of_left[k / kColumns].fractions[k % kColumns]));
        const __m256i cut = _mm256_srlv_epi32(_mm256_abs_epi32(product),
                                              _mm256_sub_epi32(last, exponent));
        total = _mm256_add_epi32(total, _mm256_sign_epi32(cut, product));
      }
      for (int half = 0; half < 2; ++half) {
        const __m128i power = half == 0 ? _mm256_castsi256_si128(greatest)
                                        : _mm256_extracti128_si256(greatest, 1);
        const __m128i terms = half == 0 ? _mm256_castsi256_si128(total)
                                        : _mm256_extracti128_si256(total, 1);
        const __m128 sum = half == 0 ? _mm256_castps256_ps128(before)
                                     : _mm256_extractf128_ps(before, 1);
        const __m256i shift = _mm256_cvtepi32_epi64(
            _mm_sub_epi32(_mm_set1_epi32(fraction_bits), power));
        const __m256i one = _mm256_set1_epi64x(1023);
        const __m256d scale = _mm256_castsi256_pd(
            _mm256_slli_epi64(_mm256_add_epi64(one, shift), 52));
        const __m256d back = _mm256_castsi256_pd(
            _mm256_slli_epi64(_mm256_sub_epi64(one, shift), 52));
        const __m256d all = _mm256_mul_pd(
            back,
            _mm256_add_pd(_mm256_cvtepi32_pd(terms),
                          _mm256_cvtepi32_pd(_mm256_cvttpd_epi32(
                              _mm256_mul_pd(_mm256_cvtps_pd(sum), scale)))));
        // What a normal float32 has of a double's fraction.
        const __m256d cut = _mm256_and_pd(
            all, _mm256_castsi256_pd(_mm256_set1_epi64x(-(int64_t{1} << 29))));
        _mm_storeu_ps(to + 4 * half, _mm256_cvtpd_ps(cut));
        const __m256d small =
            _mm256_cmp_pd(_mm256_andnot_pd(_mm256_set1_pd(-0.0), all),
                          _mm256_set1_pd(0x1p-126), _CMP_LT_OQ);
        if (_mm256_movemask_pd(small) == 0) continue;
        alignas(32) double values[4];
        _mm256_store_pd(values, all);
        for (int n = 0; n < 4; ++n) to[4 * half + n] = TowardsZero(values[n]);
      }
    }
  }
}

}  // namespace
#endif

void TensorCoreSteps(float* sums, const float (*left)[kStepInputs], int rows,
                     const float (*right)[kStepInputs], int columns,
                     int fraction_bits) {
#if defined(__x86_64__) && defined(__GNUC__)
  static const bool has_avx2 = __builtin_cpu_supports("avx2");
  if (has_avx2 && rows <= kMaxRows && columns % kColumns == 0 &&
      fraction_bits <= kFractionBits) {
    StepsByEight(sums, left, rows, right, columns, fraction_bits);
    return;
  }
#endif
  for (int row = 0; row < rows; ++row) {
    for (int column = 0; column < columns; ++column) {
      float& sum = sums[row * columns + column];
      sum = TensorCoreStep(sum, left[row], right[column], fraction_bits);
    }
  }
}

// Rows of a and of the sums are lane / 4 and + 8; columns of the sums, and
// inputs of a and b, 2 (lane % 4) and + 1.
void JoinMma(uint32_t (*lanes)[kMmaWords]) {
  float left[16][kStepInputs];
  float right[8][kStepInputs];
  float sums[16][8];
  for (int lane = 0; lane < 32; ++lane) {
    const uint32_t* const words = lanes[lane];
    const int g = lane / 4;
    const int c = lane % 4 * 2;
    for (int i = 0; i < 4; ++i) {
      float* const to = &left[g + i % 2 * 8][c + i / 2 * 8];
      to[0] = std::bit_cast<float>(words[i] << 16);
      to[1] = std::bit_cast<float>(words[i] & 0xffff0000);
      sums[g + i / 2 * 8][c + i % 2] = std::bit_cast<float>(words[6 + i]);
    }
    for (int i = 0; i < 2; ++i) {
      right[g][c + i * 8] = std::bit_cast<float>(words[4 + i] << 16);
      right[g][c + i * 8 + 1] = std::bit_cast<float>(words[4 + i] & 0xffff0000);
    }
  }
  TensorCoreSteps(sums[0], left, 16, right, 8);
  for (int lane = 0; lane < 32; ++lane) {
    for (int i = 0; i < 4; ++i) {
      lanes[lane][6 + i] = std::bit_cast<uint32_t>(
          sums[lane / 4 + i / 2 * 8][lane % 4 * 2 + i % 2]);
    }
  }
}

void SetGroupFractionBits(int bits) { group_fraction_bits = bits; }
int GroupFractionBits() { return group_fraction_bits; }

}  // namespace baton::engine::cuda::emulated
