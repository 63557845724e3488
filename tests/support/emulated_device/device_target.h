// The words that kernels are written in, on a device that the CPU plays:
// engine/cuda/target/device_target.h says what they mean.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>

#include "common/log.h"
#include "engine/cuda/device_runtime.h"
#include "engine/cuda/launch_shape.h"
#include "engine/float_convert.h"
#include "tests/support/emulated_device/emulated_runtime.h"
#include "tests/support/emulated_device/fibers.h"
#include "tests/support/emulated_device/ptx/device.h"
#include "tests/support/emulated_device/tensor_cores.h"

#define BATON_KERNEL(threads) void
#define BATON_DENSE_KERNEL(threads, blocks) void
#define BATON_DEVICE inline
#define BATON_UNROLL
#define BATON_NO_UNROLL

namespace baton::engine::cuda {

inline int32_t Thread() { return emulated::Here().thread; }
inline int32_t Threads() { return emulated::Here().threads; }
inline int32_t BlockX() { return emulated::Here().block_x; }
inline int32_t BlockY() { return emulated::Here().block_y; }
inline int32_t BlockZ() { return emulated::Here().block_z; }

inline unsigned char* SharedMemory() { return emulated::SharedMemory(); }

inline void LetNextKernelBegin() {}
inline void AwaitEarlierKernels() { emulated::AwaitEarlierKernels(); }
// Only of what can be read.
inline void PrefetchToL2(const void* address) {
  const volatile char* const at = static_cast<const char*>(address);
  *at;
}

inline void SyncBlock() { emulated::SyncBlock(); }
inline void SyncBlockApart() { emulated::SyncBlock(); }
inline int32_t ClusterRank() { return emulated::Here().cluster_rank; }
inline void SyncCluster() { emulated::SyncCluster(); }
inline void EndCluster() { emulated::SyncCluster(); }
inline void SyncWarp() { emulated::Exchange(nullptr, 0); }
inline void FenceDevice() {}
inline float LoadFresh(const float* from) {
  emulated::CheckAwaited();
  return *from;
}

template <typename T>
T ShuffleFrom(T value, int lane) {
  static_assert(sizeof(T) % 4 == 0 && sizeof(T) <= 8);
  uint32_t words[2];
  std::memcpy(words, &value, sizeof(T));
  const auto* all = emulated::Exchange(words, sizeof(T) / 4);
  std::memcpy(&value, all[lane], sizeof(T));
  return value;
}
template <typename T>
T ShuffleXor(T value, int mask) {
  return ShuffleFrom(value, Thread() % 32 ^ mask);
}
template <typename T>
T ShuffleUp(T value, int lanes) {
  const int lane = Thread() % 32;
  return ShuffleFrom(value, lane >= lanes ? lane - lanes : lane);
}

inline float AddRn(float a, float b) { return a + b; }
inline float SubRn(float a, float b) { return a - b; }
inline float MulRn(float a, float b) { return a * b; }
inline float GreaterOf(float a, float b) { return std::fmax(a, b); }
inline float DivRn(float a, float b) { return a / b; }
inline void DivRn4(const float (&a)[4], const float (&b)[4],
                   float (&quotients)[4]) {
  for (int i = 0; i < 4; ++i) quotients[i] = a[i] / b[i];
}
inline float FmaRn(float a, float b, float c) { return std::fma(a, b, c); }
inline float SqrtRn(float a) { return std::sqrt(a); }
inline double AddRn(double a, double b) { return a + b; }
inline double MulRn(double a, double b) { return a * b; }
inline float Exp2(float x) { return std::exp2(x); }
inline uint32_t FloatBits(float x) { return std::bit_cast<uint32_t>(x); }
inline float BitsFloat(uint32_t x) { return std::bit_cast<float>(x); }

inline uint32_t PackBf16(float low, float high) {
  return FloatToBf16(low) | uint32_t{FloatToBf16(high)} << 16;
}

inline uint32_t FmaBf16x2(uint32_t a, uint32_t b, uint32_t c) {
  const auto half = [&](int shift) {
    const auto at = [&](uint32_t word) {
      return Bf16ToFloat(static_cast<uint16_t>(word >> shift));
    };
    const float exact = std::fma(at(a), at(b), at(c));
    const uint16_t rounded = FloatToBf16(exact);
    CHECK_EQ(Bf16ToFloat(rounded), exact);
    return uint32_t{rounded} << shift;
  };
  return half(0) | half(16);
}

inline void Mma(float* d, const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  uint32_t mine[emulated::kMmaWords] = {a[0], a[1], a[2], a[3], b0, b1};
  std::memcpy(mine + 6, d, 4 * sizeof(float));
  const auto* all =
      emulated::Exchange(mine, emulated::kMmaWords, emulated::JoinMma);
  std::memcpy(d, all[Thread() % 32] + 6, 4 * sizeof(float));
}

inline uint64_t GroupMatrix(uint32_t address) {
  // Tensor cores take this for a multiple of 1,024 and steps of 32 bytes.
  CHECK_LT(address % 1024, 128u);
  CHECK_EQ(address % 32, 0u);
  return address;
}
inline uint32_t SharedAddress(const void* shared) {
  return emulated::SharedAddress(shared);
}
inline void FenceForTensorCores() { emulated::FenceForTensorCores(); }

inline uint32_t OwnWord(uint32_t word, int32_t zero) {
  CHECK_EQ(zero, 0);
  return word;
}

// The inputs of a step of row `row` of a matrix.
inline void ReadGroupMatrix(uint64_t matrix, int row, float (&inputs)[16]) {
  const auto begin = static_cast<uint32_t>(matrix);
  for (int k = 0; k < 16; k += 8) {
    const uint32_t plain = begin + row / 8 * 1024 + row % 8 * 128 + k * 2;
    // The swizzle: bits 4 to 6 are changed by bits 7 to 9 of the address.
    uint16_t bits[8];
    std::memcpy(bits, emulated::SharedAt(plain ^ (plain >> 7 & 7) << 4),
                sizeof(bits));
    for (int i = 0; i < 8; ++i) inputs[k + i] = Bf16ToFloat(bits[i]);
  }
}

// As Mma, element by element. What it reads from the block's memory must be
// there when it starts, and still be when it is awaited.
template <int kHalf>
void GroupMma(float (&d)[kHalf], const uint32_t (&a)[4], uint64_t b, bool add) {
  const auto* all = emulated::Exchange(a, 4);
  const int g = Thread() % 32 / 4;
  const int c = Thread() % 4;
  struct Operands {
    float left[2][16];  // of outputs g and g + 8
    float right[kHalf / 2][16];
  };
  const auto read_right = [=](float(&right)[kHalf / 2][16]) {
    for (int i = 0; i < kHalf / 2; ++i) {
      ReadGroupMatrix(b, i / 2 * 8 + 2 * c + i % 2, right[i]);
    }
  };
  auto operands = std::make_unique<Operands>();
  for (int i = 0; i < 2; ++i) {
    for (int k = 0; k < 16; ++k) {
      const uint32_t word = all[g * 4 + k % 8 / 2][i + 2 * (k / 8)];
      operands->left[i][k] =
          Bf16ToFloat(static_cast<uint16_t>(k % 2 ? word >> 16 : word));
    }
  }
  read_right(operands->right);
  emulated::StartProduct(
      d, kHalf, [read_right, add, operands = std::move(operands)](float* sums) {
        Operands now;
        read_right(now.right);
        CHECK_EQ(std::memcmp(now.right, operands->right, sizeof(now.right)), 0)
            << "the block's memory changed while tensor cores read it";
        // Sums 4r to 4r + 3 are of rows 8r + 2c and + 1, and of both outputs.
        float of_output[2][kHalf / 2] = {};
        const auto at = [&](int i) -> float& {
          return of_output[i % 4 / 2][i / 4 * 2 + i % 2];
        };
        for (int i = 0; i < kHalf && add; ++i) at(i) = sums[i];
        emulated::TensorCoreSteps(of_output[0], operands->left, 2, now.right,
                                  kHalf / 2, emulated::GroupFractionBits());
        for (int i = 0; i < kHalf; ++i) sums[i] = at(i);
      });
}
template <int kProducts>
void GroupMmaBegin(uint32_t (&)[kProducts][4]) {
  emulated::BeginProducts();
}
template <int kProducts, int kHalf>
void GroupMmaBegin(uint32_t (&a)[kProducts][4], float (&)[kHalf]) {
  GroupMmaBegin(a);
}
inline void GroupMmaCommit() { emulated::CommitProducts(); }
inline void GroupMmaAwaitOlder() { emulated::AwaitProducts(1); }
template <int kHalf>
void GroupMmaAwaitOlder(float (&)[kHalf]) {
  GroupMmaAwaitOlder();
}
template <int kHalf>
void GroupMmaAwait(float (&)[kHalf]) {
  emulated::AwaitProducts(0);
}

template <int kRegisters>
void GiveRegisters() {}
template <int kRegisters>
void TakeRegisters() {}

using Barrier = uint64_t;

inline void InitBarrier(Barrier* barrier, int32_t arrivals) {
  emulated::InitBarrier(barrier, arrivals);
}
inline void FenceBarriers() {}
inline void ArriveExpecting(Barrier* barrier, int32_t bytes) {
  emulated::ArriveExpecting(barrier, bytes);
}
inline void Arrive(Barrier* barrier) { emulated::Arrive(barrier); }
inline void ArriveAt(Barrier* barrier, int32_t rank) {
  emulated::ArriveAt(barrier, rank);
}
inline void AwaitBarrier(Barrier* barrier, int32_t parity) {
  emulated::AwaitBarrier(barrier, parity);
}
inline void FenceForCopies() {}
inline void CopyToCluster(void* shared, const void* global, int32_t bytes,
                          Barrier* barrier, uint32_t ranks) {
  emulated::CopyToCluster(shared, global, bytes, barrier, ranks);
}
inline void CopyToBlock(void* shared, const void* global, int32_t bytes,
                        Barrier* barrier) {
  CopyToCluster(shared, global, bytes, barrier, 1u << ClusterRank());
}

struct alignas(16) Word4 {
  uint32_t x[4];
};

struct alignas(8) Word2 {
  uint32_t x[2];
};
inline Word2 Load8(const void* from) {
  emulated::CheckAwaited();
  CHECK_EQ(reinterpret_cast<uintptr_t>(from) % 8, 0u);
  Word2 w;
  std::memcpy(&w, from, sizeof(w));
  return w;
}
inline void Store8(void* to, const Word2& word) {
  emulated::CheckAwaited();
  CHECK_EQ(reinterpret_cast<uintptr_t>(to) % 8, 0u);
  std::memcpy(to, &word, sizeof(word));
}

inline Word4 Load16(const void* from) {
  emulated::CheckAwaited();
  CHECK_EQ(reinterpret_cast<uintptr_t>(from) % 16, 0u);
  Word4 w;
  std::memcpy(&w, from, sizeof(w));
  return w;
}
inline void Store16(void* to, const Word4& word) {
  emulated::CheckAwaited();
  CHECK_EQ(reinterpret_cast<uintptr_t>(to) % 16, 0u);
  std::memcpy(to, &word, sizeof(word));
}
inline void StoreForTensorCores16(void* shared, const Word4& word) {
  emulated::ExpectFence();
  Store16(shared, word);
}
inline Word4 LoadStream16(const void* from) { return Load16(from); }
inline void LoadCluster16(const unsigned char* shared, int32_t rank,
                          bool wanted, Word4& to) {
  if (wanted) to = Load16(emulated::SharedOf(shared, rank));
}
inline void LoadWeights16(const void* from, bool wanted, Word4& to) {
  CHECK_EQ(reinterpret_cast<uintptr_t>(from) % 16, 0u);
  if (wanted) std::memcpy(&to, from, sizeof(to));
}
inline void LoadWeights4(const void* from, bool wanted, uint32_t& to) {
  if (wanted) std::memcpy(&to, from, sizeof(to));
}

inline void CopyAsync16(void* shared, const void* global, bool wanted,
                        bool weights = false) {
  CHECK_EQ(reinterpret_cast<uintptr_t>(shared) % 16, 0u);
  CHECK_EQ(reinterpret_cast<uintptr_t>(global) % 16, 0u);
  const auto* to = static_cast<unsigned char*>(shared);
  CHECK(to >= SharedMemory() &&
        to + 16 <= SharedMemory() + emulated::SharedBytes());
  emulated::StartCopy(shared, wanted ? global : nullptr, weights);
}
inline void CopyWeightsAsync16(void* shared, const void* global, bool wanted) {
  CopyAsync16(shared, global, wanted, /*weights=*/true);
}
inline void CommitCopies() { emulated::CommitCopies(); }
template <int kPending>
void AwaitCopies() {
  emulated::AwaitCopies(kPending);
}

inline void AtomicAdd(uint32_t* shared, uint32_t value) { *shared += value; }
inline uint32_t AtomicNext(uint32_t* at) { return (*at)++; }
inline void AtomicMax(uint32_t* shared, uint32_t value) {
  *shared = std::max(*shared, value);
}
inline void AtomicMin(uint32_t* shared, uint32_t value) {
  *shared = std::min(*shared, value);
}

template <typename... Parameters, typename... Arguments>
void Launch(void (*kernel)(Parameters...), const char* name,
            const LaunchShape& shape, StreamHandle* stream,
            Arguments... arguments) {
  emulated::RunOrRecord(stream, [=] {
    if (emulated::ptx::Wanted()) {
      emulated::CountRun(name);
      emulated::ptx::RunKernel(
          reinterpret_cast<const void*>(kernel), shape,
          {emulated::ptx::BytesOf(static_cast<Parameters>(arguments))...});
      return;
    }
    emulated::RunKernel(
        name, shape, [&] { kernel(arguments...); }, /*awaits=*/true);
  });
}

}  // namespace baton::engine::cuda
