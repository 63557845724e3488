// Ceilings of AVX-512 with BF16 and VNNI.
#include <immintrin.h>

#include "engine/cpu/ceiling_loops.h"

namespace baton::engine::cpu {
namespace {

// Two pipes with a latency of four to six cycles: twelve sums or more in turn.
constexpr int kSums = 16;

float Bf16(int64_t rounds) {
  // Ones, or zeros: the compiler cannot know.
  const __m512bh a = (__m512bh)_mm512_set1_epi32((rounds & 1) * 0x3f803f80);
  __m512 sum[kSums];
#pragma GCC unroll 16
  for (int i = 0; i < kSums; ++i) {
    sum[i] = _mm512_set1_ps(static_cast<float>(i));
  }
  for (int64_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 16
    for (int i = 0; i < kSums; ++i) sum[i] = _mm512_dpbf16_ps(sum[i], a, a);
  }
  __m512 all = sum[0];
#pragma GCC unroll 16
  for (int i = 1; i < kSums; ++i) all = _mm512_add_ps(all, sum[i]);
  return _mm512_reduce_add_ps(all);
}

int32_t Int8(int64_t rounds) {
  const __m512i a = _mm512_set1_epi32(static_cast<int>(rounds) & 1);
  __m512i sum[kSums];
#pragma GCC unroll 16
  for (int i = 0; i < kSums; ++i) sum[i] = _mm512_set1_epi32(i);
  for (int64_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 16
    for (int i = 0; i < kSums; ++i) {
      sum[i] = _mm512_dpbusd_epi32(sum[i], a, a);
    }
  }
  __m512i all = sum[0];
#pragma GCC unroll 16
  for (int i = 1; i < kSums; ++i) all = _mm512_add_epi32(all, sum[i]);
  return _mm512_reduce_add_epi32(all);
}

uint64_t Read(const void* data, int64_t bytes) {
  constexpr int64_t kStep = 1024;
  const char* p = static_cast<const char*>(data);
  __m512i sum[4];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) sum[i] = _mm512_setzero_si512();
  for (const char* const end = p + bytes; p != end; p += kStep) {
#pragma GCC unroll 16
    for (int i = 0; i < kStep / 64; ++i) {
      sum[i % 4] = _mm512_xor_si512(sum[i % 4], _mm512_load_si512(p + 64 * i));
    }
  }
  return static_cast<uint64_t>(_mm512_reduce_add_epi64(_mm512_xor_si512(
      _mm512_xor_si512(sum[0], sum[1]), _mm512_xor_si512(sum[2], sum[3]))));
}

}  // namespace

const CeilingLoops kAvx512Bf16CeilingLoops = {
    .name = "avx512bf16",
    .bf16 = Bf16,
    .int8 = Int8,
    .bf16_operations = kSums * 16 * 2 * 2,
    .int8_operations = kSums * 16 * 4 * 2,
    .read = Read,
};

}  // namespace baton::engine::cpu
