#include "tests/support/emulated_device/fibers.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/attributes.h"
#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "common/log.h"
#include "tests/support/emulated_device/fiber_context.h"
#include "tests/support/emulated_device/fiber_device.h"
#include "tests/support/emulated_device/grid_order.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

namespace baton::engine::cuda::emulated {

ThreadPlace* here = nullptr;

namespace {

// Not a multiple of 4,096: where the stacks of a warp's lanes end, they are not
// to be in each other's way in the cache.
constexpr size_t kStackBytes = (96 << 10) + 640;
// Bytes of it in all, but for the block's.
constexpr size_t kMemoryAlignment = 128;

ABSL_CONST_INIT absl::Mutex counts_mutex(absl::kConstInit);

// Kernels that were run, by name.
std::map<std::string, int64_t>& Counts()
    ABSL_EXCLUSIVE_LOCKS_REQUIRED(counts_mutex) {
  static auto* const counts = new std::map<std::string, int64_t>;
  return *counts;
}

Warp& WarpOf(Device& device, const Fiber& fiber) {
  const int of_cluster =
      fiber.place.cluster_rank * fiber.place.threads + fiber.place.thread;
  return device.warps[of_cluster / kLanes];
}

// The warp's lanes have all come to where they wait for each other.
void EndExchange(Warp& warp, Fiber* first) {
  for (int lane = 0; lane < kLanes; ++lane) first[lane].state = State::kReady;
  warp.waiting = 0;
  if (warp.join != nullptr) warp.join(warp.words[warp.exchanges % 2]);
  ++warp.exchanges;
}

// The lane of the same warp that goes on where this one cannot, in the order of
// the kernel's threads; null where the scheduler is to say.
Fiber* NextLane(Device& device, Fiber& fiber) {
  if (fiber.state == State::kArrived) return nullptr;
  const int lane = fiber.place.thread % kLanes;
  const bool falling = device.order == ThreadOrder::kFalling;
  if (lane != (falling ? 0 : kLanes - 1)) {
    Fiber* const next = falling ? &fiber - 1 : &fiber + 1;
    return next->state == State::kReady ? next : nullptr;
  }
  if (fiber.state != State::kAtWarp) return nullptr;
  Warp& warp = WarpOf(device, fiber);
  if (warp.waiting < kLanes) return nullptr;
  Fiber* const first = &fiber - lane;
  EndExchange(warp, first);
  return falling ? first + (kLanes - 1) : first;
}

// Makes the fiber the one that runs; the caller switches to it.
void SetCurrent(Device& device, Fiber& fiber, bool from_scheduler) {
  device.current = &fiber;
  device.from_scheduler = from_scheduler;
  here = &fiber.place;
}

#if defined(__SANITIZE_ADDRESS__)
// First thing where a fiber goes on.
void FinishSwitch(Device& device, void* fake_stack) {
  const void* bottom = nullptr;
  size_t size = 0;
  __sanitizer_finish_switch_fiber(fake_stack, &bottom, &size);
  if (!device.from_scheduler) return;
  device.stack_bottom = bottom;
  device.stack_size = size;
}
#endif

}  // namespace

void Yield(State state) {
  Device& device = TheDevice();
  Fiber& fiber = *device.current;
  fiber.state = state;
  if (state == State::kAtWarp) ++WarpOf(device, fiber).waiting;
  Fiber* const next = NextLane(device, fiber);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(
      state == State::kDone ? nullptr : &fiber.fake_stack,
      next != nullptr ? next->stack.get() : device.stack_bottom,
      next != nullptr ? kStackBytes : device.stack_size);
#endif
  if (next != nullptr) {
    SetCurrent(device, *next, /*from_scheduler=*/false);
    SwitchContext(fiber.context, next->context);
  } else {
    SwitchContext(fiber.context, device.context);
  }
#if defined(__SANITIZE_ADDRESS__)
  FinishSwitch(device, fiber.fake_stack);
#endif
}

namespace {

// From the scheduler into a fiber, until one of its warp's waits for more than
// the warp or is done: which one.
Fiber& Resume(Device& device, Fiber& fiber) {
  SetCurrent(device, fiber, /*from_scheduler=*/true);
#if defined(__SANITIZE_ADDRESS__)
  void* fake_stack = nullptr;
  __sanitizer_start_switch_fiber(&fake_stack, fiber.stack.get(), kStackBytes);
#endif
  SwitchContext(device.context, fiber.context);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(fake_stack, nullptr, nullptr);
#endif
  Fiber& last = *device.current;
  device.current = nullptr;
  here = nullptr;
  return last;
}

void FiberMain() {
  Device& device = TheDevice();
#if defined(__SANITIZE_ADDRESS__)
  FinishSwitch(device, nullptr);
#endif
  (*device.body)();
  CheckAwaited();
  CHECK(device.current->open_copies.empty() && device.current->groups.empty())
      << device.kernel << ": copies that nobody waited for";
  CHECK(device.current->open_products.empty() && device.current->sums.empty())
      << device.kernel << ": products that nobody waited for";
  Yield(State::kDone);
  LOG(FATAL) << "a fiber that is done was resumed";
}

// The lane that is to run next, null if none is ready.
Fiber* FirstReady(Device& device, Fiber* first) {
  for (int i = 0; i < kLanes; ++i) {
    const int lane = device.order == ThreadOrder::kFalling ? kLanes - 1 - i : i;
    if (first[lane].state == State::kReady) return &first[lane];
  }
  return nullptr;
}

// Runs the warp's lanes until all wait for more than the warp or are done; or
// until one of them has ended a barrier's phase: then others run first.
void RunWarp(Device& device, int block, int warp) {
  Fiber* const first = FibersOf(device, block) + warp * kLanes;
  for (;;) {
    if (Fiber* const ready = FirstReady(device, first); ready != nullptr) {
      Fiber& last = Resume(device, *ready);
      if (last.state != State::kArrived) continue;
      last.state = State::kReady;
      device.passed_barrier = true;
      return;
    }
    const State state = first[0].state;
    for (int lane = 1; lane < kLanes; ++lane) {
      CHECK(first[lane].state == state)
          << device.kernel << ": the lanes of warp " << warp
          << " wait for different things";
    }
    if (state != State::kAtWarp) return;
    EndExchange(WarpOf(device, *first), first);
  }
}

// Whether all threads of a block are in that state.
bool AllAre(Device& device, int block, State state) {
  const Fiber* const first = FibersOf(device, block);
  for (int t = 0; t < device.threads; ++t) {
    if (first[t].state != state) return false;
  }
  return true;
}

void MakeReady(Device& device, int block) {
  for (int t = 0; t < device.threads; ++t) {
    FibersOf(device, block)[t].state = State::kReady;
  }
}

// Runs each warp of a block that is not known to wait for others, and lets the
// block go on if all its threads have come to where they wait for each other.
// Whether anything came on.
bool RunWarps(Device& device, int block) {
  const int warps = device.threads / kLanes;
  bool came_on = false;
  for (int i = 0; i < warps; ++i) {
    const int warp = device.order == ThreadOrder::kRising ? i : warps - 1 - i;
    Fiber* const first = FibersOf(device, block) + warp * kLanes;
    bool ready = false;
    for (int lane = 0; lane < kLanes; ++lane) {
      State& state = first[lane].state;
      if (state == State::kAtBarrier) state = State::kReady;
      ready |= state == State::kReady;
    }
    if (!ready) continue;
    device.passed_barrier = false;
    RunWarp(device, block, warp);
    came_on |= first->state != State::kAtBarrier || device.passed_barrier;
  }
  if (!AllAre(device, block, State::kAtBlock)) return came_on;
  MakeReady(device, block);
  return true;
}

void RunCluster(Device& device, int blocks) {
  const int threads = blocks * device.threads;
  for (int t = 0; t < threads; ++t) {
    Fiber& fiber = device.fibers[t];
#if defined(__SANITIZE_ADDRESS__)
    // A fiber that ended left frames there that never returned.
    __asan_unpoison_memory_region(fiber.stack.get(), kStackBytes);
#endif
    PrepareContext(fiber.context, fiber.stack.get(), kStackBytes, &FiberMain);
  }
  for (;;) {
    bool came_on = false;
    int done = 0;
    int at_cluster = 0;
    for (int i = 0; i < blocks; ++i) {
      const int block =
          device.order == ThreadOrder::kFalling ? blocks - 1 - i : i;
      // As far as it can: so it ends before others where nothing holds it.
      while (RunWarps(device, block)) came_on = true;
      done += AllAre(device, block, State::kDone) ? 1 : 0;
      at_cluster += AllAre(device, block, State::kAtCluster) ? 1 : 0;
    }
    if (done == blocks) break;
    if (at_cluster == blocks) {
      for (int block = 0; block < blocks; ++block) MakeReady(device, block);
      continue;
    }
    CHECK(came_on) << device.kernel
                   << ": some threads wait for what does not come, or for "
                      "others, which ended or wait for something else";
  }
  for (const auto& [place, barrier] : device.barriers) {
    CHECK(barrier.copies.empty())
        << device.kernel << ": copies to a cluster that nobody waited for";
  }
  device.barriers.clear();
}

// Of every block of a cluster. AddressSanitizer is to see where it ends, so
// that then it is not what an earlier kernel left.
void TakeMemory(Device& device, int blocks, int64_t bytes) {
  device.shared_bytes = bytes;
#if defined(__SANITIZE_ADDRESS__)
  device.memory.clear();
#endif
  device.memory.resize(blocks);
  for (BlockMemory& memory : device.memory) {
    if (memory.size < bytes) {
      memory.bytes = std::make_unique_for_overwrite<unsigned char[]>(
          bytes + kMemoryAlignment);
      memory.size = bytes;
    }
    unsigned char* const at = memory.bytes.get();
    memory.begin = at + (kMemoryAlignment -
                         reinterpret_cast<uintptr_t>(at) % kMemoryAlignment) %
                            kMemoryAlignment;
  }
}

// Bytes behind the block's own.
size_t BytesBehind(const BlockMemory& memory) {
  return memory.bytes.get() + kMemoryAlignment - memory.begin;
}

}  // namespace

int64_t TimesRun(const std::string& name) {
  absl::MutexLock lock(&counts_mutex);
  return Counts()[name];
}

void CountRun(const std::string& name) {
  absl::MutexLock lock(&counts_mutex);
  ++Counts()[name];
}

void SetThreadOrder(ThreadOrder order) { TheDevice().wanted_order = order; }

void RunKernel(const char* name, const LaunchShape& shape,
               absl::FunctionRef<void()> body, bool awaits) {
  Device& device = TheDevice();
  CHECK(device.current == nullptr) << "a kernel launched a kernel";
  CHECK(shape.threads > 0 && shape.threads <= 1024 &&
        shape.threads % kLanes == 0)
      << name << ": " << shape.threads << " threads";
  CHECK(shape.x > 0 && shape.y > 0 && shape.z > 0 && shape.y < 65536 &&
        shape.z < 65536)
      << name << ": no such grid";
  // What every chip that Baton is built for has.
  CHECK_LE(shape.shared_bytes, 227 << 10) << name;
  device.kernel = name;
  CountRun(name);
  device.order = device.wanted_order;
  if (device.order == ThreadOrder::kVaried) {
    constexpr ThreadOrder kOrders[] = {ThreadOrder::kRising,
                                       ThreadOrder::kFalling,
                                       ThreadOrder::kWarpsFalling};
    device.order = kOrders[device.kernels++ % 3];
  }
  device.body = &body;
  const int threads = static_cast<int>(shape.threads);
  const int cluster = static_cast<int>(shape.cluster);
  CHECK(shape.cluster > 0 && shape.cluster <= kMaxCluster &&
        shape.x % shape.cluster == 0)
      << name << ": clusters of " << shape.cluster;
  while (static_cast<int>(device.fibers.size()) < cluster * threads) {
    device.fibers.emplace_back();
    device.fibers.back().stack =
        std::make_unique_for_overwrite<char[]>(kStackBytes);
  }
  device.threads = threads;
  device.warps.resize(cluster * threads / kLanes);
  TakeMemory(device, cluster, shape.shared_bytes);
  const auto run = [&](const ClusterPlace& place) {
    for (int block = 0; block < cluster; ++block) {
      // As bfloat16 and float32, NaN.
      const BlockMemory& memory = device.memory[block];
      std::memset(memory.begin, 0xff, shape.shared_bytes + BytesBehind(memory));
      for (int t = 0; t < threads; ++t) {
        Fiber& fiber = FibersOf(device, block)[t];
        fiber.state = State::kReady;
        fiber.unfenced = fiber.begun = false;
        fiber.product_groups.clear();
        fiber.place = {t,
                       threads,
                       static_cast<int32_t>(place.x) + block,
                       static_cast<int32_t>(place.y),
                       static_cast<int32_t>(place.z),
                       block,
                       memory.begin,
                       !awaits};
      }
    }
    for (Warp& warp : device.warps) warp.waiting = 0;
    RunCluster(device, cluster);
    for (const BlockMemory& memory : device.memory) {
      const unsigned char* const end = memory.begin + shape.shared_bytes;
      for (size_t i = 0; i < BytesBehind(memory); ++i) {
        CHECK_EQ(end[i], 0xff)
            << name << ": wrote " << i << " bytes behind the block's memory";
      }
    }
  };
  ForEachCluster(shape, device.order == ThreadOrder::kFalling, run);
  device.body = nullptr;
}

int64_t SharedBytes() { return TheDevice().shared_bytes; }

void FailAwaited() {
  LOG(FATAL) << TheDevice().kernel
             << ": does not wait for the kernels before it";
  std::abort();
}

void SyncBlock() {
  CheckAwaited();
  Yield(State::kAtBlock);
}
void SyncCluster() {
  CheckAwaited();
  Yield(State::kAtCluster);
}

const unsigned char* SharedOf(const void* shared, int32_t rank) {
  Device& device = TheDevice();
  CHECK(rank >= 0 && rank < static_cast<int>(device.memory.size()))
      << device.kernel << ": the cluster has no block " << rank;
  const auto at = static_cast<const unsigned char*>(shared) - SharedMemory();
  CHECK(at >= 0 && at < device.shared_bytes) << device.kernel;
  CHECK(FibersOf(device, rank)->state != State::kDone)
      << device.kernel << ": the block whose memory is read has ended";
  return device.memory[rank].begin + at;
}

const ExchangeWords* Exchange(const uint32_t* mine, int words,
                              void (*join)(ExchangeWords* all)) {
  CheckAwaited();
  Device& device = TheDevice();
  Fiber& fiber = *device.current;
  CHECK_LE(words, kExchangeWords);
  Warp& warp = WarpOf(device, fiber);
  auto* const all = warp.words[warp.exchanges % 2];
  if (warp.waiting == 0) warp.join = join;
  CHECK(warp.join == join) << device.kernel
                           << ": the lanes of a warp do different things";
  if (words > 0) {
    std::memcpy(all[fiber.place.thread % kLanes], mine,
                words * sizeof(uint32_t));
  }
  Yield(State::kAtWarp);
  return all;
}

}  // namespace baton::engine::cuda::emulated
