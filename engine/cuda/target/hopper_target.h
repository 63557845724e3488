// The part of device_target.h that only chips from Hopper on have: tensor cores
// that work for groups of warps, and barriers and copies for clusters of
// blocks. Elsewhere no kernel that uses them is launched.
#pragma once

#include <cstdint>

#include "engine/cuda/target/device_target.h"

namespace baton::engine::cuda {

// What a matrix of 8 n rows of 64 bfloat16 in the block's memory, 16-byte
// pieces swizzled (InputOrder::kStaged), is called by tensor cores that read it
// by themselves: PTX's matrix descriptor, rows of 128 bytes that are swizzled
// by eight. `address` is SharedAddress of its beginning, a multiple of 1,024,
// plus 32 bytes for each step of 16 inputs that is skipped.
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

// Store16 to where tensor cores will read by themselves: FenceForTensorCores,
// and then a barrier, come before that.
BATON_DEVICE void StoreForTensorCores16(void* shared, const Word4& word) {
  Store16(shared, word);
}
// What the thread wrote to the block's memory is what tensor cores that read it
// by themselves will see, once a barrier has told the others.
BATON_DEVICE void FenceForTensorCores() {
#if BATON_HAS_GROUP_MMA
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

#if BATON_HAS_GROUP_MMA
// For GroupMma.
BATON_DEVICE void GroupMma64(float (&d)[32], const uint32_t (&a)[4], uint64_t b,
                             int add) {
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "setp.ne.b32 p, %37, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, "
      "%8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, "
      "%24, %25, %26, %27, %28, %29, %30, %31"
      "}, {%32, %33, %34, %35}, %36, p, 1, 1, 0;\n"
      "}\n"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]),
        "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]),
        "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
        "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]),
        "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]),
        "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]),
        "+f"(d[31])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
}

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

// The word, in a register that it shares with no other. `zero` is zero, and
// what no compiler can know to be: a block's number in a direction that the
// grid does not have.
BATON_DEVICE uint32_t OwnWord(uint32_t word, int32_t zero) {
  uint32_t own;
  asm volatile("xor.b32 %0, %1, %2;" : "=r"(own) : "r"(word), "r"(zero));
  return own;
}

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
  static_assert(kHalf == 32 || kHalf == 64 || kHalf == 128);
  if constexpr (kHalf == 128) {
    GroupMma256(d, a, b, add ? 1 : 0);
  } else if constexpr (kHalf == 32) {
    GroupMma64(d, a, b, add ? 1 : 0);
  } else {
    GroupMma128(d, a, b, add ? 1 : 0);
  }
#else
  __trap();
#endif
}
//
// `a` is what kernels have computed, or OwnWord: ptxas up to CUDA 13.2 takes a
// register that a product still reads for free where its word was only copied
// there (triton-lang/triton issues 9433 and 11781).
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
// The same where `d` was changed since it was last awaited.
template <int kProducts, int kHalf>
BATON_DEVICE void GroupMmaBegin(uint32_t (&a)[kProducts][4],
                                float (&d)[kHalf]) {
#if BATON_HAS_GROUP_MMA
  BATON_UNROLL
  for (int i = 0; i < kHalf; ++i) asm volatile("" : "+f"(d[i])::"memory");
#endif
  GroupMmaBegin(a);
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
// The same; `d` is what the products that are waited for add to.
template <int kHalf>
BATON_DEVICE void GroupMmaAwaitOlder(float (&d)[kHalf]) {
#if BATON_HAS_GROUP_MMA
  GroupMmaAwaitOlder();
  // Not read before.
  BATON_UNROLL
  for (int i = 0; i < kHalf; ++i) asm volatile("" : "+f"(d[i])::"memory");
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
// Arrives at the block's own barrier.
BATON_DEVICE void Arrive(Barrier* barrier) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile(
      "mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(SharedAddress(barrier))
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
// What kernels before this one wrote to the device's memory is what the
// thread's copies to a cluster will read.
BATON_DEVICE void FenceForCopies() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("fence.proxy.async.global;" ::: "memory");
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

// The same for the block's own memory and barrier alone.
BATON_DEVICE void CopyToBlock(void* shared, const void* global, int32_t bytes,
                              Barrier* barrier) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
      " [%0], [%1], %2, [%3];" ::"r"(SharedAddress(shared)),
      "l"(global), "r"(bytes), "r"(SharedAddress(barrier))
      : "memory");
#endif
}

}  // namespace baton::engine::cuda
