// The words that kernels are written in, on a CUDA device. A device that the
// CPU plays has a header of the same name (tests/support/emulated_device);
// CMake says which one a build of the kernels finds. Both define, in namespace
// baton::engine::cuda:
//
//   BATON_KERNEL(threads)   begins a kernel of blocks of at most that many
//   BATON_DENSE_KERNEL(threads, blocks)   the same, with registers for so many
//                           blocks on a multiprocessor at least
//   BATON_DEVICE            begins a function that kernels call
//   BATON_UNROLL            before a loop to be unrolled
//   Thread(), Block(axis)...     where a thread is
//   SharedMemory()          the block's memory, 128-byte aligned
//   AwaitEarlierKernels()   what a kernel begins with
//   LetNextKernelBegin()    and what it may do to begin itself while others run
//   SyncBlock(), SyncWarp() barriers
//   SyncCluster(), SharedOf of blocks that read each other's memory
//   ShuffleXor, ShuffleDown, ...
//   Mma, CopyAsync16, ...   tensor cores and asynchronous copies
//   GroupMma...             tensor cores of Hopper
//   Barrier...              barriers that also count bytes, and copies to
//                           several blocks that they count
//   AddRn, MulRn, ...       arithmetic that no compiler contracts
//   Launch(kernel, shape, stream, arguments...)
//
// Never included by host code: see device_runtime.h.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "engine/cuda/device_runtime.h"
#include "engine/cuda/launch_shape.h"
#include "engine/cuda/target/stream_handle.h"

#define BATON_KERNEL(threads) __global__ void __launch_bounds__(threads)
#define BATON_DENSE_KERNEL(threads, blocks) \
  __global__ void __launch_bounds__(threads, blocks)
#define BATON_DEVICE __device__ __forceinline__
#define BATON_UNROLL _Pragma("unroll")
#define BATON_NO_UNROLL _Pragma("unroll 1")

namespace baton::engine::cuda {

BATON_DEVICE int32_t Thread() { return static_cast<int32_t>(threadIdx.x); }
BATON_DEVICE int32_t Threads() { return static_cast<int32_t>(blockDim.x); }
BATON_DEVICE int32_t BlockX() { return static_cast<int32_t>(blockIdx.x); }
BATON_DEVICE int32_t BlockY() { return static_cast<int32_t>(blockIdx.y); }
BATON_DEVICE int32_t BlockZ() { return static_cast<int32_t>(blockIdx.z); }

BATON_DEVICE unsigned char* SharedMemory() {
  extern __shared__ __align__(128) unsigned char baton_shared_memory[];
  return baton_shared_memory;
}

// Lets the next kernel's blocks begin where there is room for them, once all
// threads of all blocks of this one have called it or ended
// (Stream::SetEarlyKernels). They have their first weights brought, and wait in
// AwaitEarlierKernels. Products with few rows, which are as fast as memory, call
// it when they have asked for their last weights: those of the next one would
// only get into their way.
BATON_DEVICE void LetNextKernelBegin() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Returns when all kernels that were given to the stream before have ended, and
// what they wrote can be read. All threads of all kernels call it: a kernel has
// ended when those before it have, so the next one need not wait for more.
// Before it a kernel writes nothing, and reads nothing but what none writes:
// weights (LoadWeights16, CopyWeightsAsync16), and what the host has sent for
// the step. It may call PrefetchToL2.
BATON_DEVICE void AwaitEarlierKernels() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Has the 128 bytes around an address of the device's memory brought to the
// level of caches that all blocks share.
BATON_DEVICE void PrefetchToL2(const void* address) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(address));
}

BATON_DEVICE void SyncBlock() { __syncthreads(); }
// The same for warps that call it at different places.
BATON_DEVICE void SyncBlockApart() {
  asm volatile("barrier.cta.sync 0;" ::: "memory");
}

// Of a cluster (LaunchShape::cluster): the block's number in it; and a barrier
// for all threads of its blocks, behind which they see what was written to any
// block's memory. A block that others read does not end before another barrier.
BATON_DEVICE int32_t ClusterRank() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  uint32_t rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return static_cast<int32_t>(rank);
#else
  return 0;
#endif
}
BATON_DEVICE void SyncCluster() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.aligned;" ::: "memory");
  asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
#else
  __syncthreads();
#endif
}
// That barrier, if it is for this alone: what was written before need not be
// seen behind it.
BATON_DEVICE void EndCluster() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
  asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
#else
  __syncthreads();
#endif
}
BATON_DEVICE void SyncWarp() { __syncwarp(); }

// What the thread wrote to the device's memory before is seen by others that
// see what it writes after, if they, too, have a fence in between.
BATON_DEVICE void FenceDevice() {
  asm volatile("fence.acq_rel.gpu;" ::: "memory");
}
// Reads what another block may have written meanwhile.
BATON_DEVICE float LoadFresh(const float* from) { return __ldcg(from); }

// All 32 lanes call it.
template <typename T>
BATON_DEVICE T ShuffleXor(T value, int mask) {
  return __shfl_xor_sync(0xffffffffu, value, mask);
}
template <typename T>
BATON_DEVICE T ShuffleUp(T value, int lanes) {
  return __shfl_up_sync(0xffffffffu, value, lanes);
}

// The greater one; of a NaN and a number, the number.
BATON_DEVICE float GreaterOf(float a, float b) { return fmaxf(a, b); }

// Each rounds once, to nearest even, and is never joined with another.
BATON_DEVICE float AddRn(float a, float b) { return __fadd_rn(a, b); }
BATON_DEVICE float SubRn(float a, float b) { return __fsub_rn(a, b); }
BATON_DEVICE float MulRn(float a, float b) { return __fmul_rn(a, b); }
BATON_DEVICE float DivRn(float a, float b) { return __fdiv_rn(a, b); }
// Four quotients, of divisors of at least 1: what DivRn is compiled to where
// neither number is extreme (Markstein, "Computation of elementary functions on
// the IBM RISC System/6000", 1990: a quotient and its remainder, multiplied
// with the reciprocal), but with one branch for all of them, which mostly none
// takes. What becomes of one does not depend on the others.
BATON_DEVICE void DivRn4(const float (&a)[4], const float (&b)[4],
                         float (&quotients)[4]) {
  bool usual[4];
  _Pragma("unroll") for (int i = 0; i < 4; ++i) {
    const float magnitude = fabsf(a[i]);
    // Not where the fraction is all ones, the one case for which a reciprocal
    // that is off by an ulp is not good enough.
    usual[i] =
        b[i] <= 0x1p60f && (__float_as_uint(b[i]) & 0x7fffffu) != 0x7fffffu &&
        ((magnitude >= 0x1p-60f && magnitude <= 0x1p60f) || magnitude == 0.0f);
    float about;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(about) : "f"(b[i]));
    const float reciprocal =
        __fmaf_rn(about, __fmaf_rn(-b[i], about, 1.0f), about);
    const float quotient = __fmul_rn(a[i], reciprocal);
    const float remainder = __fmaf_rn(-b[i], quotient, a[i]);
    // Of rows that are not there, a is zero.
    quotients[i] =
        magnitude == 0.0f ? a[i] : __fmaf_rn(reciprocal, remainder, quotient);
  }
  if (usual[0] && usual[1] && usual[2] && usual[3]) return;
  _Pragma("unroll") for (int i = 0; i < 4; ++i) {
    if (!usual[i]) quotients[i] = __fdiv_rn(a[i], b[i]);
  }
}
BATON_DEVICE float FmaRn(float a, float b, float c) {
  return __fmaf_rn(a, b, c);
}
BATON_DEVICE float SqrtRn(float a) { return __fsqrt_rn(a); }
BATON_DEVICE double AddRn(double a, double b) { return __dadd_rn(a, b); }
BATON_DEVICE double MulRn(double a, double b) { return __dmul_rn(a, b); }

// 2^x, within some units in the last place; exact for 0 and -infinity.
BATON_DEVICE float Exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

BATON_DEVICE uint32_t FloatBits(float x) { return __float_as_uint(x); }
BATON_DEVICE float BitsFloat(uint32_t x) { return __uint_as_float(x); }

// Two bfloat16 values in a word, `low` in the low half; to nearest even, NaN
// stays NaN.
BATON_DEVICE uint32_t PackBf16(float low, float high) {
  uint32_t word;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  return word;
}

// a * b + c of each of the two bfloat16 of a word, rounded once; subnormal
// values count. Kernels call it where the result is exact.
BATON_DEVICE uint32_t FmaBf16x2(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t word;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(word) : "r"(a), "r"(b), "r"(c));
  return word;
}

// d += a b on tensor cores, as PTX's mma.m16n8k16 for bfloat16 says: with
// g = lane / 4 and c = lane % 4,
//   a[0], a[1]   row g, row g + 8 at k = 2c, 2c + 1
//   a[2], a[3]   the same at k = 2c + 8, 2c + 9
//   b0, b1       column g at k = 2c, 2c + 1, and at k = 2c + 8, 2c + 9
//   d[0], d[1]   row g, columns 2c, 2c + 1
//   d[2], d[3]   row g + 8, the same
// All 32 lanes call it.
BATON_DEVICE void Mma(float* d, const uint32_t (&a)[4], uint32_t b0,
                      uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

struct alignas(16) Word4 {
  uint32_t x[4];
};

// 16 bytes that no kernel writes and that are read once: they need not stay in
// the caches. Not volatile, so that the compiler may fetch ahead.
BATON_DEVICE Word4 LoadStream16(const void* from) {
  Word4 w;
  asm("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
      : "=r"(w.x[0]), "=r"(w.x[1]), "=r"(w.x[2]), "=r"(w.x[3])
      : "l"(from));
  return w;
}
// 8 aligned bytes of any memory, and 16.
struct alignas(8) Word2 {
  uint32_t x[2];
};
BATON_DEVICE Word2 Load8(const void* from) {
  return *reinterpret_cast<const Word2*>(from);
}
BATON_DEVICE void Store8(void* to, const Word2& word) {
  *reinterpret_cast<Word2*>(to) = word;
}
// 16 aligned bytes of another block's memory, if `wanted`.
BATON_DEVICE void LoadCluster16(const unsigned char* shared, int32_t rank,
                                bool wanted, Word4& to) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  const auto at = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  asm volatile(
      "{\n"
      ".reg .u32 at;\n"
      ".reg .pred wanted;\n"
      "setp.ne.u32 wanted, %6, 0;\n"
      "@wanted mapa.shared::cluster.u32 at, %4, %5;\n"
      "@wanted ld.shared::cluster.v4.u32 {%0, %1, %2, %3}, [at];\n"
      "}"
      : "+r"(to.x[0]), "+r"(to.x[1]), "+r"(to.x[2]), "+r"(to.x[3])
      : "r"(at), "r"(rank), "r"(wanted ? 1 : 0)
      : "memory");
#endif  // elsewhere there are no clusters
}
// 16 bytes, or 4, that no kernel writes, if `wanted`, at this very place of a
// kernel: the compiler moves other loads of them behind a barrier, and a loop's
// turn then takes as long as memory does. Also before AwaitEarlierKernels.
BATON_DEVICE void LoadWeights16(const void* from, bool wanted, Word4& to) {
  asm volatile(
      "{\n"
      ".reg .pred wanted;\n"
      "setp.ne.u32 wanted, %5, 0;\n"
      "@wanted ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];\n"
      "}"
      : "+r"(to.x[0]), "+r"(to.x[1]), "+r"(to.x[2]), "+r"(to.x[3])
      : "l"(from), "r"(wanted ? 1 : 0));
}
BATON_DEVICE void LoadWeights4(const void* from, bool wanted, uint32_t& to) {
  asm volatile(
      "{\n"
      ".reg .pred wanted;\n"
      "setp.ne.u32 wanted, %2, 0;\n"
      "@wanted ld.global.u32 %0, [%1];\n"
      "}"
      : "+r"(to)
      : "l"(from), "r"(wanted ? 1 : 0));
}
BATON_DEVICE Word4 Load16(const void* from) {
  return *reinterpret_cast<const Word4*>(from);
}

BATON_DEVICE void Store16(void* to, const Word4& word) {
  *reinterpret_cast<Word4*>(to) = word;
}

// Starts copying 16 aligned bytes from the device's memory to the block's;
// zeros when `wanted` is false, and nothing is read then.
BATON_DEVICE void CopyAsync16(void* shared, const void* global, bool wanted) {
  const uint32_t to = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  const uint32_t bytes = wanted ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
               :
               : "r"(to), "l"(global), "r"(bytes)
               : "memory");
}
// The same of weights, which no kernel writes: also before AwaitEarlierKernels.
// For lanes to read, not for tensor cores that do so by themselves.
BATON_DEVICE void CopyWeightsAsync16(void* shared, const void* global,
                                     bool wanted) {
  const uint32_t to = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  const uint32_t bytes = wanted ? 16 : 0;
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;"
               :
               : "r"(to), "l"(global), "r"(bytes)
               : "memory");
}
// Closes the group of the thread's copies so far.
BATON_DEVICE void CommitCopies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
// Waits until at most `kPending` of the thread's groups are unfinished. What
// other threads copied is visible after a barrier only.
template <int kPending>
BATON_DEVICE void AwaitCopies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// On the block's memory; AtomicNext, which returns what was there, on the
// device's, too.
BATON_DEVICE void AtomicAdd(uint32_t* shared, uint32_t value) {
  atomicAdd(shared, value);
}
BATON_DEVICE uint32_t AtomicNext(uint32_t* at) { return atomicAdd(at, 1u); }
BATON_DEVICE void AtomicMax(uint32_t* shared, uint32_t value) {
  atomicMax(shared, value);
}
BATON_DEVICE void AtomicMin(uint32_t* shared, uint32_t value) {
  atomicMin(shared, value);
}

inline void CheckLaunch(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "CUDA: launching %s: %s\n", what,
               cudaGetErrorString(error));
  std::abort();
}

// Runs the kernel on the stream. More than 48 KB of a block's memory are asked
// for first.
template <typename... Parameters, typename... Arguments>
void Launch(void (*kernel)(Parameters...), const char* name,
            const LaunchShape& shape, StreamHandle* stream,
            Arguments... arguments) {
  if (shape.shared_bytes > 48 * 1024) {
    AllowSharedBytes(reinterpret_cast<const void*>(kernel), shape.shared_bytes,
                     name);
  }
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(shape.x, shape.y, shape.z);
  config.blockDim = dim3(shape.threads);
  config.dynamicSmemBytes = static_cast<size_t>(shape.shared_bytes);
  config.stream = stream->native;
  cudaLaunchAttribute attributes[3];
  config.attrs = attributes;
  if (stream->early_kernels) {
    cudaLaunchAttribute& early = attributes[config.numAttrs++];
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
  }
  if (shape.cluster > 1) {
    cudaLaunchAttribute& cluster = attributes[config.numAttrs++];
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim.x = shape.cluster;
    cluster.val.clusterDim.y = 1;
    cluster.val.clusterDim.z = 1;
  }
#if CUDART_VERSION >= 12060
  if (stream->most_block_memory) {
    cudaLaunchAttribute& split = attributes[config.numAttrs++];
    split.id = cudaLaunchAttributePreferredSharedMemoryCarveout;
    split.val.sharedMemCarveout = cudaSharedmemCarveoutMaxShared;
  }
#endif
  CheckLaunch(cudaLaunchKernelEx(&config, kernel, arguments...), name);
}

}  // namespace baton::engine::cuda

#include "engine/cuda/target/hopper_target.h"
