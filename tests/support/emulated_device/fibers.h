// Thread blocks of a device, played by the CPU: each of their threads is a
// fiber that runs until it must wait for others. For tests of kernels where
// there is no GPU.
//
// What it finds: wrong indices (with AddressSanitizer, every access outside an
// allocation or the block's memory), barriers and shuffles that not all threads
// reach, reads of the block's memory before anyone wrote it (it begins as NaN),
// copies that nobody waited for (they are made when they are awaited, not
// before), products of groups of warps that are used too early, or whose
// operands change meanwhile (they, too, are made when they are awaited), blocks
// of a cluster that end while others read their memory, waits for what does not
// come, kernels that do not wait for those before them (AwaitEarlierKernels),
// and races, when the order of the threads, or of blocks, changes the result
// (SetThreadOrder). Tensor cores round as Hopper's do (tensor_cores.h). What it
// does not know: time, and the rounding of fast functions.
//
// Used by one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/functional/any_invocable.h"
#include "absl/functional/function_ref.h"
#include "engine/cuda/launch_shape.h"

namespace baton::engine::cuda::emulated {

// In which order the threads of a block run up to a barrier; with kFalling, the
// blocks of a grid, too, of which each ends before the next. kVaried, which it
// begins with: another one for each kernel that is run, so that what should be
// the same to the bit differs where it depends on the order.
enum class ThreadOrder { kRising, kFalling, kWarpsFalling, kVaried };
void SetThreadOrder(ThreadOrder order);

// Runs `body` once for each thread of each block. With `awaits`, threads are to
// call AwaitEarlierKernels, before anything that reads or writes.
void RunKernel(const char* name, const LaunchShape& shape,
               absl::FunctionRef<void()> body, bool awaits = false);

// How often a kernel of that name was run in this process; and once more, by
// another way than RunKernel. Any thread.
int64_t TimesRun(const std::string& name);
void CountRun(const std::string& name);

// Of the thread that runs. REQUIRES: called from a kernel.
struct ThreadPlace {
  int32_t thread = 0;
  int32_t threads = 0;
  int32_t block_x = 0;
  int32_t block_y = 0;
  int32_t block_z = 0;
  int32_t cluster_rank = 0;  // of the block, among those of its cluster
  unsigned char* shared_memory = nullptr;
  bool awaited = false;  // earlier kernels
};
extern ThreadPlace* here;
inline const ThreadPlace& Here() { return *here; }
inline unsigned char* SharedMemory() { return here->shared_memory; }
inline void AwaitEarlierKernels() { here->awaited = true; }
// Ends a test where that was not called.
[[noreturn]] void FailAwaited();
inline void CheckAwaited() {
  if (!here->awaited) FailAwaited();
}
int64_t SharedBytes();

void SyncBlock();
// Of all threads of all blocks of the cluster.
void SyncCluster();
// The same place of the memory of another block of the cluster. Whoever reads
// that is to know that the block runs still.
const unsigned char* SharedOf(const void* shared, int32_t rank);
// Hands each lane's `mine` to all of its warp, and waits for all lanes. The
// result, kExchangeWords words per lane, is good until the lane's next call. Of
// what all have brought `join` makes what all get, once; all name the same one.
inline constexpr int kExchangeWords = 10;  // those of kMmaWords
using ExchangeWords = uint32_t[kExchangeWords];
const ExchangeWords* Exchange(const uint32_t* mine, int words,
                              void (*join)(ExchangeWords* all) = nullptr);

// An asynchronous copy of 16 bytes, or zeros when `from` is null; of weights,
// which only lanes read, also before AwaitEarlierKernels.
void StartCopy(void* to, const void* from, bool weights = false);
void CommitCopies();
void AwaitCopies(int pending);

// Barriers that count arrivals and bytes, by where they lie in a block's memory
// (AwaitBarrier of device_target.h). Bytes are copied when somebody awaits the
// phase that they belong to.
void InitBarrier(const void* barrier, int arrivals);
void ArriveExpecting(const void* barrier, int64_t bytes);
void Arrive(const void* barrier);
void ArriveAt(const void* barrier, int32_t rank);
void AwaitBarrier(const void* barrier, int parity);
// `to` and `barrier` are the block's own; the copy is for each of `ranks`.
void CopyToCluster(void* to, const void* from, int64_t bytes,
                   const void* barrier, uint32_t ranks);

// As the device names a place of the block's memory, which begins where no
// matrix may (128 bytes behind a multiple of 1,024); and the place of a name.
uint32_t SharedAddress(const void* shared);
const unsigned char* SharedAt(uint32_t address);

// A thread's part of a product of a group of warps (GroupMma). What copies
// brought must be fenced by who awaited them; products are begun, started,
// committed and awaited. `multiply` runs when it is awaited; until all that are
// to change `sums` have run, these are NaN.
void FenceForTensorCores();
// The thread writes what they will read.
void ExpectFence();
void BeginProducts();
void StartProduct(float* sums, int count,
                  absl::AnyInvocable<void(float* sums)> multiply);
void CommitProducts();
void AwaitProducts(int pending);

}  // namespace baton::engine::cuda::emulated
