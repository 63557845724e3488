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

// Returns when all kernels that were given to the stream before have ended, and
// what they wrote can be read. A kernel may begin before that
// (Stream::SetEarlyKernels), and lets the next one begin here. All threads of
// all kernels call it: a kernel has ended when those before it have, so the
// next one need not wait for more. Before it a kernel reads and writes nothing;
// it may call PrefetchToL2.
BATON_DEVICE void AwaitEarlierKernels() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Has the 128 bytes around an address of the device's memory brought to the
// level of caches that all blocks share.
BATON_DEVICE void PrefetchToL2(const void* address) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(address));
}

BATON_DEVICE void SyncBlock() { __syncthreads(); }

// Of a cluster (LaunchShape::cluster): the block's number in it; a barrier for
// all threads of its blocks, behind which they see what was written to any
// block's memory; and the same place of another block's memory. A block that
// others read does not end before another barrier.
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
BATON_DEVICE const unsigned char* SharedOf(const unsigned char* shared,
                                           int32_t rank) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  const unsigned char* other;
  asm("mapa.u64 %0, %1, %2;" : "=l"(other) : "l"(shared), "r"(rank));
  return other;
#else
  return shared;
#endif
}
BATON_DEVICE void SyncWarp() { __syncwarp(); }

// All 32 lanes call it.
template <typename T>
BATON_DEVICE T ShuffleXor(T value, int mask) {
  return __shfl_xor_sync(0xffffffffu, value, mask);
}
template <typename T>
BATON_DEVICE T ShuffleUp(T value, int lanes) {
  return __shfl_up_sync(0xffffffffu, value, lanes);
}

// Each rounds once, to nearest even, and is never joined with another.
BATON_DEVICE float AddRn(float a, float b) { return __fadd_rn(a, b); }
BATON_DEVICE float SubRn(float a, float b) { return __fsub_rn(a, b); }
BATON_DEVICE float MulRn(float a, float b) { return __fmul_rn(a, b); }
BATON_DEVICE float DivRn(float a, float b) { return __fdiv_rn(a, b); }
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
BATON_DEVICE void Mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0,
                      uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// What a matrix of 8 n rows of 64 bfloat16 in the block's memory, 16-byte
// pieces swizzled (GroupPlace), is called by tensor cores that read it by
// themselves: PTX's matrix descriptor, rows of 128 bytes that are swizzled by
// eight. `address` is SharedAddress of its beginning, a multiple of 1,024, plus
// 32 bytes for each step of 16 inputs that is skipped.
BATON_DEVICE uint64_t GroupMatrix(uint32_t address) {
  constexpr uint64_t kEightRows = 1024 / 16;
  constexpr uint64_t kSwizzle128 = 1;
  return (address >> 4 & 0x3fff) | uint64_t{1} << 16 | kEightRows << 32 |
         kSwizzle128 << 62;
}

BATON_DEVICE uint32_t SharedAddress(const void* shared) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(shared));
}

// sm_90a has them; elsewhere no kernel that calls them is launched.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define BATON_HAS_GROUP_MMA 1
#else
#define BATON_HAS_GROUP_MMA 0
#endif

// What the thread wrote to the block's memory is what tensor cores that read it
// by themselves will see, once a barrier has told the others.
BATON_DEVICE void FenceForTensorCores() {
#if BATON_HAS_GROUP_MMA
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

#if BATON_HAS_GROUP_MMA
// For GroupMma.
BATON_DEVICE void GroupMma128(float (&d)[64], const uint32_t (&a)[4],
                              uint64_t b, int add) {
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "setp.ne.b32 p, %69, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, "
      "%12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, "
      "%24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, "
      "%36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, "
      "%60, %61, %62, %63"
      "}, {%64, %65, %66, %67}, %68, p, 1, 1, 0;\n"
      "}\n"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]),
        "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]),
        "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
        "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]),
        "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]),
        "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]),
        "+f"(d[31]), "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]),
        "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]),
        "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]),
        "+f"(d[46]), "+f"(d[47]), "+f"(d[48]), "+f"(d[49]), "+f"(d[50]),
        "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]),
        "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]),
        "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
}

// For GroupMma.
BATON_DEVICE void GroupMma256(float (&d)[128], const uint32_t (&a)[4],
                              uint64_t b, int add) {
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "setp.ne.b32 p, %133, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, "
      "%12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, "
      "%24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, "
      "%36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, "
      "%60, %61, %62, %63, %64, %65, %66, %67, %68, %69, %70, %71, "
      "%72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, "
      "%84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "
      "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, "
      "%108, %109, %110, %111, %112, %113, %114, %115, %116, %117, %118, %119, "
      "%120, %121, %122, %123, %124, %125, %126, %127"
      "}, {%128, %129, %130, %131}, %132, p, 1, 1, 0;\n"
      "}\n"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]),
        "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]),
        "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
        "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]),
        "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]),
        "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]),
        "+f"(d[31]), "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]),
        "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]),
        "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]),
        "+f"(d[46]), "+f"(d[47]), "+f"(d[48]), "+f"(d[49]), "+f"(d[50]),
        "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]),
        "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]),
        "+f"(d[61]), "+f"(d[62]), "+f"(d[63]), "+f"(d[64]), "+f"(d[65]),
        "+f"(d[66]), "+f"(d[67]), "+f"(d[68]), "+f"(d[69]), "+f"(d[70]),
        "+f"(d[71]), "+f"(d[72]), "+f"(d[73]), "+f"(d[74]), "+f"(d[75]),
        "+f"(d[76]), "+f"(d[77]), "+f"(d[78]), "+f"(d[79]), "+f"(d[80]),
        "+f"(d[81]), "+f"(d[82]), "+f"(d[83]), "+f"(d[84]), "+f"(d[85]),
        "+f"(d[86]), "+f"(d[87]), "+f"(d[88]), "+f"(d[89]), "+f"(d[90]),
        "+f"(d[91]), "+f"(d[92]), "+f"(d[93]), "+f"(d[94]), "+f"(d[95]),
        "+f"(d[96]), "+f"(d[97]), "+f"(d[98]), "+f"(d[99]), "+f"(d[100]),
        "+f"(d[101]), "+f"(d[102]), "+f"(d[103]), "+f"(d[104]), "+f"(d[105]),
        "+f"(d[106]), "+f"(d[107]), "+f"(d[108]), "+f"(d[109]), "+f"(d[110]),
        "+f"(d[111]), "+f"(d[112]), "+f"(d[113]), "+f"(d[114]), "+f"(d[115]),
        "+f"(d[116]), "+f"(d[117]), "+f"(d[118]), "+f"(d[119]), "+f"(d[120]),
        "+f"(d[121]), "+f"(d[122]), "+f"(d[123]), "+f"(d[124]), "+f"(d[125]),
        "+f"(d[126]), "+f"(d[127])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
}
#endif

// d += a b, or d = a b without `add`, on tensor cores of Hopper, for the 64
// outputs of a group of four warps that begins at a multiple of four: as PTX's
// wgmma.m64nNk16 for bfloat16 says, each warp has 16 of them, with `a` as Mma
// has it; b is N rows of 16 inputs, of a GroupMatrix. With g = lane / 4 and
// c = lane % 4, of row tile r, d[4r] to d[4r + 3] are as d of Mma: outputs g
// (the first two) and g + 8, rows 8r + 2c, + 1.
//
// It runs beside what follows: neither d nor a may be touched, nor what b names
// be overwritten, before GroupMmaAwait. GroupMmaBegin, with what will be `a`,
// comes before the first of a group of products that GroupMmaCommit closes. All
// 128 threads call these.
template <int kHalf>
BATON_DEVICE void GroupMma(float (&d)[kHalf], const uint32_t (&a)[4],
                           uint64_t b, bool add) {
#if BATON_HAS_GROUP_MMA
  static_assert(kHalf == 64 || kHalf == 128);
  if constexpr (kHalf == 128) {
    GroupMma256(d, a, b, add ? 1 : 0);
  } else {
    GroupMma128(d, a, b, add ? 1 : 0);
  }
#else
  __trap();
#endif
}
template <int kProducts>
BATON_DEVICE void GroupMmaBegin(uint32_t (&a)[kProducts][4]) {
#if BATON_HAS_GROUP_MMA
  // Made before, not in between.
  BATON_UNROLL
  for (int i = 0; i < kProducts * 4; ++i) {
    asm volatile("" : "+r"(a[i / 4][i % 4])::"memory");
  }
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
}
BATON_DEVICE void GroupMmaCommit() {
#if BATON_HAS_GROUP_MMA
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#endif
}
// Waits until all but the youngest of the warps' groups of products are done.
BATON_DEVICE void GroupMmaAwaitOlder() {
#if BATON_HAS_GROUP_MMA
  asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
#endif
}
// Waits for all. `d` is what they add to.
template <int kHalf>
BATON_DEVICE void GroupMmaAwait(float (&d)[kHalf]) {
#if BATON_HAS_GROUP_MMA
  asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
  // Not read before.
  BATON_UNROLL
  for (int i = 0; i < kHalf; ++i) asm volatile("" : "+f"(d[i])::"memory");
#endif
}

// A group of four warps has so many registers a thread from here on: fewer than
// before, or more, which it waits for. Between them a block's groups have no
// more than they began with. All threads of the group call it.
template <int kRegisters>
BATON_DEVICE void GiveRegisters() {
#if BATON_HAS_GROUP_MMA
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
#endif
}
template <int kRegisters>
BATON_DEVICE void TakeRegisters() {
#if BATON_HAS_GROUP_MMA
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
#endif
}

// A barrier in the block's memory (PTX's mbarrier), whose phases end when so
// many threads have arrived and the bytes that these expect have been copied.
using Barrier = uint64_t;

// By one thread, which then calls FenceBarriers, and SyncCluster with all.
BATON_DEVICE void InitBarrier(Barrier* barrier, int32_t arrivals) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile(
      "mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(SharedAddress(barrier)),
      "r"(arrivals)
      : "memory");
#endif
}
BATON_DEVICE void FenceBarriers() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}
// Arrives at the block's own barrier, and has it expect bytes.
BATON_DEVICE void ArriveExpecting(Barrier* barrier, int32_t bytes) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(
                   SharedAddress(barrier)),
               "r"(bytes)
               : "memory");
#endif
}
// Arrives at the barrier at the same place of a block of the cluster.
BATON_DEVICE void ArriveAt(Barrier* barrier, int32_t rank) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile(
      "{\n"
      ".reg .b32 other;\n"
      "mapa.shared::cluster.u32 other, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [other];\n"
      "}\n" ::"r"(SharedAddress(barrier)),
      "r"(rank)
      : "memory");
#endif
}
// Returns when the phase of this parity has ended: the first one has parity 0,
// and what would be the one before it, 1, has ended from the beginning.
BATON_DEVICE void AwaitBarrier(Barrier* barrier, int32_t parity) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again;\n"
      "}\n" ::"r"(SharedAddress(barrier)),
      "r"(parity)
      : "memory");
#endif
}
// Starts copying bytes, a multiple of 16, to the same place of the memory of
// all blocks of the cluster whose bits are in `ranks`; each one's barrier at
// the place of `barrier` counts them. By one thread.
BATON_DEVICE void CopyToCluster(void* shared, const void* global, int32_t bytes,
                                Barrier* barrier, uint32_t ranks) {
#if BATON_HAS_GROUP_MMA
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
      ".multicast::cluster [%0], [%1], %2, [%3], %4;" ::"r"(
          SharedAddress(shared)),
      "l"(global), "r"(bytes), "r"(SharedAddress(barrier)),
      "h"(static_cast<uint16_t>(ranks))
      : "memory");
#endif
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
// 16 aligned bytes of any memory.
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

// On the block's memory.
BATON_DEVICE void AtomicAdd(uint32_t* shared, uint32_t value) {
  atomicAdd(shared, value);
}
BATON_DEVICE uint32_t AtomicNext(uint32_t* shared) {
  return atomicAdd(shared, 1u);
}
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
// for once per kernel.
template <typename... Parameters, typename... Arguments>
void Launch(void (*kernel)(Parameters...), const char* name,
            const LaunchShape& shape, StreamHandle* stream,
            Arguments... arguments) {
  if (shape.shared_bytes > 48 * 1024) {
    CheckLaunch(cudaFuncSetAttribute(
                    kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                    static_cast<int>(shape.shared_bytes)),
                name);
  }
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(shape.x, shape.y, shape.z);
  config.blockDim = dim3(shape.threads);
  config.dynamicSmemBytes = static_cast<size_t>(shape.shared_bytes);
  config.stream = stream->native;
  cudaLaunchAttribute attributes[2];
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
  CheckLaunch(cudaLaunchKernelEx(&config, kernel, arguments...), name);
}

}  // namespace baton::engine::cuda
