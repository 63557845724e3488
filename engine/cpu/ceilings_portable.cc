// Ceilings of whatever the compiler makes of vectors of four.
#include "engine/cpu/ceiling_loops.h"

namespace baton::engine::cpu {
namespace {

typedef float Floats __attribute__((vector_size(16)));
typedef int32_t Ints __attribute__((vector_size(16)));
typedef uint64_t Words __attribute__((vector_size(16)));

constexpr int kSums = 12;

float Bf16(int64_t rounds) {
  const float first = static_cast<float>(rounds & 1);
  const Floats a = {first, first, first, first};
  Floats sum[kSums];
#pragma GCC unroll 16
  for (int i = 0; i < kSums; ++i) {
    const float x = static_cast<float>(i);
    sum[i] = Floats{x, x, x, x};
  }
  for (int64_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 16
    for (int i = 0; i < kSums; ++i) sum[i] += a * sum[i];
      // Sums that doubled each time would overflow.
#pragma GCC unroll 16
    for (int i = 0; i < kSums; ++i) sum[i] *= 0.5f;
  }
  Floats all = sum[0];
#pragma GCC unroll 16
  for (int i = 1; i < kSums; ++i) all += sum[i];
  return all[0] + all[1] + all[2] + all[3];
}

int32_t Int8(int64_t rounds) {
  const auto first = static_cast<int32_t>(rounds & 1);
  const Ints a = {first, first, first, first};
  Ints sum[kSums];
#pragma GCC unroll 16
  for (int i = 0; i < kSums; ++i) sum[i] = Ints{i, i, i, i};
  for (int64_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 16
    for (int i = 0; i < kSums; ++i) sum[i] += a * (sum[i] & 1);
  }
  Ints all = sum[0];
#pragma GCC unroll 16
  for (int i = 1; i < kSums; ++i) all ^= sum[i];
  return all[0] ^ all[1] ^ all[2] ^ all[3];
}

uint64_t Read(const void* data, int64_t bytes) {
  constexpr int64_t kStep = 256;
  const char* p = static_cast<const char*>(data);
  Words sum[4] = {};
  for (const char* const end = p + bytes; p != end; p += kStep) {
#pragma GCC unroll 16
    for (int i = 0; i < kStep / 16; ++i) {
      sum[i % 4] ^= *reinterpret_cast<const Words*>(p + 16 * i);
    }
  }
  const Words all = sum[0] ^ sum[1] ^ sum[2] ^ sum[3];
  return all[0] ^ all[1];
}

}  // namespace

const CeilingLoops kPortableCeilingLoops = {
    .name = "portable",
    .bf16 = Bf16,
    .int8 = Int8,
    // Two products and a sum.
    .bf16_operations = kSums * 4 * 3,
    .int8_operations = kSums * 4 * 2,
    .read = Read,
};

}  // namespace baton::engine::cpu
