// Ceilings of AVX2: bfloat16 products are float products there, and 8-bit ones
// take three instructions.
#include <immintrin.h>

#include "engine/cpu/ceiling_loops.h"

namespace baton::engine::cpu {
namespace {

constexpr int kSums = 12;

inline float SumOf(__m256 v) {
  const __m128 half =
      _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  const __m128 quarter = _mm_add_ps(half, _mm_movehl_ps(half, half));
  return _mm_cvtss_f32(_mm_add_ss(quarter, _mm_movehdup_ps(quarter)));
}

inline uint64_t WordOf(__m256i v) {
  const __m128i half =
      _mm_xor_si128(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
  return static_cast<uint64_t>(
      _mm_cvtsi128_si64(_mm_xor_si128(half, _mm_unpackhi_epi64(half, half))));
}

float Bf16(int64_t rounds) {
  const __m256 a = _mm256_set1_ps(static_cast<float>(rounds & 1));
  __m256 sum[kSums];
#pragma GCC unroll 16
  for (int i = 0; i < kSums; ++i) {
    sum[i] = _mm256_set1_ps(static_cast<float>(i));
  }
  for (int64_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 16
    for (int i = 0; i < kSums; ++i) sum[i] = _mm256_fmadd_ps(a, a, sum[i]);
  }
  __m256 all = sum[0];
#pragma GCC unroll 16
  for (int i = 1; i < kSums; ++i) all = _mm256_add_ps(all, sum[i]);
  return SumOf(all);
}

int32_t Int8(int64_t rounds) {
  const __m256i one = _mm256_set1_epi16(1);
  __m256i sum[kSums];
#pragma GCC unroll 16
  for (int i = 0; i < kSums; ++i) sum[i] = _mm256_set1_epi32(i);
  for (int64_t round = 0; round < rounds; ++round) {
    // Changes with the round: the products may not leave the loop.
    const __m256i a = _mm256_set1_epi32(static_cast<int>(round) & 1);
#pragma GCC unroll 16
    for (int i = 0; i < kSums; ++i) {
      const __m256i pairs = _mm256_maddubs_epi16(a, sum[i]);
      sum[i] = _mm256_add_epi32(sum[i], _mm256_madd_epi16(pairs, one));
    }
  }
  __m256i all = sum[0];
#pragma GCC unroll 16
  for (int i = 1; i < kSums; ++i) all = _mm256_add_epi32(all, sum[i]);
  return static_cast<int32_t>(WordOf(all));
}

uint64_t Read(const void* data, int64_t bytes) {
  constexpr int64_t kStep = 512;
  const char* p = static_cast<const char*>(data);
  __m256i sum[4];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) sum[i] = _mm256_setzero_si256();
  for (const char* const end = p + bytes; p != end; p += kStep) {
#pragma GCC unroll 16
    for (int i = 0; i < kStep / 32; ++i) {
      sum[i % 4] = _mm256_xor_si256(
          sum[i % 4],
          _mm256_load_si256(reinterpret_cast<const __m256i*>(p + 32 * i)));
    }
  }
  return WordOf(_mm256_xor_si256(_mm256_xor_si256(sum[0], sum[1]),
                                 _mm256_xor_si256(sum[2], sum[3])));
}

}  // namespace

const CeilingLoops kAvx2CeilingLoops = {
    .name = "avx2",
    .bf16 = Bf16,
    .int8 = Int8,
    .bf16_operations = kSums * 8 * 2,
    .int8_operations = kSums * 8 * 4 * 2,
    .read = Read,
};

}  // namespace baton::engine::cpu
