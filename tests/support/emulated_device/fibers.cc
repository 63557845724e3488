#include "tests/support/emulated_device/fibers.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <limits>
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

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

namespace baton::engine::cuda::emulated {
namespace {

constexpr int kLanes = 32;
constexpr size_t kStackBytes = 96 << 10;

enum class State { kReady, kAtWarp, kAtBarrier, kAtBlock, kAtCluster, kDone };

struct Copy {
  void* to;
  const void* from;
};

// Sums that products are to change, as they are without those.
struct Sums {
  std::vector<float> values;
  int products = 0;
};

struct Product {
  float* sums;
  absl::AnyInvocable<void(float*)> multiply;
};

struct Fiber {
  FiberContext context;
  std::unique_ptr<char[]> stack;
  void* fake_stack = nullptr;
  State state = State::kDone;
  ThreadPlace place;
  uint32_t exchanges = 0;
  bool awaited = false;  // earlier kernels
  std::vector<Copy> open_copies;
  std::deque<std::vector<Copy>> groups;
  bool unfenced = false;  // awaited copies that tensor cores may not see
  bool begun = false;
  std::map<float*, Sums> sums;
  std::vector<Product> open_products;
  std::deque<std::vector<Product>> product_groups;
};

// What lanes hand each other; two, because a fast lane may come to the next
// exchange while a slow one still reads this one.
struct Warp {
  uint32_t words[2][kLanes][kExchangeWords];
};

struct BulkCopy {
  void* to;
  const void* from;
  int64_t bytes;
};

// A barrier in a block's memory.
struct BarrierState {
  int arrivals = 0;  // of a phase
  int missing = 0;   // of this phase
  int64_t expected_bytes = 0;
  std::vector<BulkCopy> copies;
  int64_t ended_phases = 0;
};

// The memory of a block. Aligned, with some bytes behind the end that nobody
// may write.
struct BlockMemory {
  std::unique_ptr<unsigned char[]> bytes;
  unsigned char* begin = nullptr;
};

// Bytes of it in all, but for the block's.
constexpr size_t kMemoryAlignment = 128;

struct Device {
  ThreadOrder wanted_order = ThreadOrder::kVaried;
  ThreadOrder order = ThreadOrder::kRising;  // of the kernel that runs
  uint32_t kernels = 0;
  const char* kernel = "";
  absl::FunctionRef<void()>* body = nullptr;
  // Of the blocks of a cluster, one after another.
  std::vector<Fiber> fibers;
  std::vector<Warp> warps;
  std::vector<BlockMemory> memory;
  int64_t shared_bytes = 0;  // of a block
  int threads = 0;           // of a block
  std::map<const void*, BarrierState> barriers;
  // Somebody came past a barrier since the scheduler looked.
  bool passed_barrier = false;
  Fiber* current = nullptr;
  FiberContext context;  // where the scheduler waits
  const void* stack_bottom = nullptr;
  size_t stack_size = 0;
};

Device& TheDevice() {
  static Device* const device = new Device;
  return *device;
}

ABSL_CONST_INIT absl::Mutex counts_mutex(absl::kConstInit);

// Kernels that were run, by name.
std::map<std::string, int64_t>& Counts()
    ABSL_EXCLUSIVE_LOCKS_REQUIRED(counts_mutex) {
  static auto* const counts = new std::map<std::string, int64_t>;
  return *counts;
}

// From the scheduler into a fiber, until it waits or is done.
void Resume(Fiber& fiber) {
  Device& device = TheDevice();
  device.current = &fiber;
#if defined(__SANITIZE_ADDRESS__)
  void* fake_stack = nullptr;
  __sanitizer_start_switch_fiber(&fake_stack, fiber.stack.get(), kStackBytes);
#endif
  SwitchContext(device.context, fiber.context);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(fake_stack, nullptr, nullptr);
#endif
  device.current = nullptr;
}

// From a fiber to the scheduler.
void Yield(State state) {
  Device& device = TheDevice();
  Fiber& fiber = *device.current;
  fiber.state = state;
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(
      state == State::kDone ? nullptr : &fiber.fake_stack, device.stack_bottom,
      device.stack_size);
#endif
  SwitchContext(fiber.context, device.context);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(fiber.fake_stack, &device.stack_bottom,
                                  &device.stack_size);
#endif
}

void FiberMain() {
  Device& device = TheDevice();
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(nullptr, &device.stack_bottom,
                                  &device.stack_size);
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

// The first fiber of a block.
Fiber* FibersOf(Device& device, int block) {
  return &device.fibers[static_cast<size_t>(block) * device.threads];
}

// Runs the warp's lanes until all wait for more than the warp or are done.
void RunWarp(Device& device, int block, int warp, int lanes) {
  Fiber* const first = FibersOf(device, block) + warp * kLanes;
  for (;;) {
    for (int i = 0; i < lanes; ++i) {
      const int lane =
          device.order == ThreadOrder::kFalling ? lanes - 1 - i : i;
      if (first[lane].state == State::kReady) Resume(first[lane]);
    }
    const State state = first[0].state;
    for (int lane = 1; lane < lanes; ++lane) {
      CHECK(first[lane].state == state)
          << device.kernel << ": the lanes of warp " << warp
          << " wait for different things";
    }
    if (state != State::kAtWarp) return;
    for (int lane = 1; lane < lanes; ++lane) {
      CHECK_EQ(first[lane].exchanges, first[0].exchanges) << device.kernel;
    }
    for (int lane = 0; lane < lanes; ++lane) first[lane].state = State::kReady;
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

// Runs each warp that is not known to wait for others; whether any came on.
bool RunWarps(Device& device, int blocks) {
  const int warps = device.threads / kLanes;
  bool came_on = false;
  for (int i = 0; i < blocks * warps; ++i) {
    const int block = device.order == ThreadOrder::kFalling
                          ? blocks - 1 - i / warps
                          : i / warps;
    const int warp = device.order == ThreadOrder::kRising
                         ? i % warps
                         : warps - 1 - i % warps;
    Fiber* const first = FibersOf(device, block) + warp * kLanes;
    if (first->state != State::kReady && first->state != State::kAtBarrier) {
      continue;
    }
    for (int lane = 0; lane < kLanes; ++lane) first[lane].state = State::kReady;
    device.passed_barrier = false;
    RunWarp(device, block, warp, kLanes);
    came_on |= first->state != State::kAtBarrier || device.passed_barrier;
  }
  return came_on;
}

// Lets those go on who have all come to where they wait for each other; whether
// any did.
bool ReleaseThoseWhoMet(Device& device, int blocks) {
  bool released = false;
  int at_cluster = 0;
  for (int block = 0; block < blocks; ++block) {
    at_cluster += AllAre(device, block, State::kAtCluster) ? 1 : 0;
    if (!AllAre(device, block, State::kAtBlock)) continue;
    MakeReady(device, block);
    released = true;
  }
  if (at_cluster < blocks) return released;
  for (int block = 0; block < blocks; ++block) MakeReady(device, block);
  return true;
}

void RunCluster(Device& device, int blocks) {
  const int threads = blocks * device.threads;
  for (int t = 0; t < threads; ++t) {
    Fiber& fiber = device.fibers[t];
    PrepareContext(fiber.context, fiber.stack.get(), kStackBytes, &FiberMain);
  }
  for (;;) {
    bool came_on = RunWarps(device, blocks);
    came_on |= ReleaseThoseWhoMet(device, blocks);
    bool done = true;
    for (int block = 0; block < blocks; ++block) {
      done &= AllAre(device, block, State::kDone);
    }
    if (done) break;
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

void TakeMemory(Device& device, int blocks, int64_t bytes) {
  device.shared_bytes = bytes;
  device.memory.clear();
  for (int i = 0; i < blocks; ++i) {
    BlockMemory memory;
    memory.bytes = std::make_unique<unsigned char[]>(bytes + kMemoryAlignment);
    unsigned char* const at = memory.bytes.get();
    memory.begin = at + (kMemoryAlignment -
                         reinterpret_cast<uintptr_t>(at) % kMemoryAlignment) %
                            kMemoryAlignment;
    device.memory.push_back(std::move(memory));
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
  {
    absl::MutexLock lock(&counts_mutex);
    ++Counts()[name];
  }
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
    device.fibers.back().stack = std::make_unique<char[]>(kStackBytes);
  }
  device.threads = threads;
  device.warps.resize(cluster * threads / kLanes);
  TakeMemory(device, cluster, shape.shared_bytes);
  for (uint32_t z = 0; z < shape.z; ++z) {
    for (uint32_t y = 0; y < shape.y; ++y) {
      for (uint32_t x = 0; x < shape.x; x += shape.cluster) {
        for (int block = 0; block < cluster; ++block) {
          // As bfloat16 and float32, NaN.
          const BlockMemory& memory = device.memory[block];
          std::memset(memory.begin, 0xff,
                      shape.shared_bytes + BytesBehind(memory));
          for (int t = 0; t < threads; ++t) {
            Fiber& fiber = FibersOf(device, block)[t];
            fiber.state = State::kReady;
            fiber.exchanges = 0;
            fiber.awaited = !awaits;
            fiber.unfenced = fiber.begun = false;
            fiber.product_groups.clear();
            fiber.place = {t,
                           threads,
                           static_cast<int32_t>(x) + block,
                           static_cast<int32_t>(y),
                           static_cast<int32_t>(z),
                           block};
          }
        }
        RunCluster(device, cluster);
        for (const BlockMemory& memory : device.memory) {
          const unsigned char* const end = memory.begin + shape.shared_bytes;
          for (size_t i = 0; i < BytesBehind(memory); ++i) {
            CHECK_EQ(end[i], 0xff) << name << ": wrote " << i
                                   << " bytes behind the block's memory";
          }
        }
      }
    }
  }
  device.body = nullptr;
}

const ThreadPlace& Here() { return TheDevice().current->place; }
unsigned char* SharedMemory() {
  Device& device = TheDevice();
  return device.memory[device.current->place.cluster_rank].begin;
}
int64_t SharedBytes() { return TheDevice().shared_bytes; }

void AwaitEarlierKernels() { TheDevice().current->awaited = true; }
void CheckAwaited() {
  const Device& device = TheDevice();
  CHECK(device.current->awaited)
      << device.kernel << ": does not wait for the kernels before it";
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

const uint32_t (*Exchange(const uint32_t* mine, int words))[kExchangeWords] {
  CheckAwaited();
  Device& device = TheDevice();
  Fiber& fiber = *device.current;
  CHECK_LE(words, kExchangeWords);
  const int half = fiber.exchanges % 2;
  const int of_cluster =
      fiber.place.cluster_rank * fiber.place.threads + fiber.place.thread;
  Warp& warp = device.warps[of_cluster / kLanes];
  if (words > 0) {
    std::memcpy(warp.words[half][fiber.place.thread % kLanes], mine,
                words * sizeof(uint32_t));
  }
  ++fiber.exchanges;
  Yield(State::kAtWarp);
  return warp.words[half];
}

namespace {

BarrierState& BarrierAt(const void* barrier) {
  Device& device = TheDevice();
  const auto place = device.barriers.find(barrier);
  CHECK(place != device.barriers.end())
      << device.kernel << ": a barrier that nobody made";
  return place->second;
}

// Ends the phase if nothing is missing, and has its bytes copied. With `late`,
// only one that has no bytes.
void EndPhase(BarrierState& barrier, bool late) {
  if (barrier.missing > 0 || (late && barrier.expected_bytes > 0)) return;
  int64_t bytes = 0;
  for (const BulkCopy& copy : barrier.copies) bytes += copy.bytes;
  if (bytes != barrier.expected_bytes) return;
  for (const BulkCopy& copy : barrier.copies) {
    std::memcpy(copy.to, copy.from, copy.bytes);
  }
  barrier.copies.clear();
  barrier.expected_bytes = 0;
  barrier.missing = barrier.arrivals;
  ++barrier.ended_phases;
}

void Arrive(BarrierState& barrier, int64_t bytes) {
  EndPhase(barrier, /*late=*/false);
  CHECK_GT(barrier.missing, 0)
      << TheDevice().kernel << ": more arrivals than a barrier's phase has";
  barrier.expected_bytes += bytes;
  --barrier.missing;
  EndPhase(barrier, /*late=*/true);
}

}  // namespace

void InitBarrier(const void* barrier, int arrivals) {
  CHECK_GT(arrivals, 0);
  BarrierState& state = TheDevice().barriers[barrier];
  CHECK_EQ(state.arrivals, 0) << TheDevice().kernel << ": made twice";
  state.arrivals = state.missing = arrivals;
}

void ArriveExpecting(const void* barrier, int64_t bytes) {
  Arrive(BarrierAt(barrier), bytes);
}

void ArriveAt(const void* barrier, int32_t rank) {
  Arrive(BarrierAt(SharedOf(barrier, rank)), 0);
}

void AwaitBarrier(const void* barrier, int parity) {
  CheckAwaited();
  BarrierState& state = BarrierAt(barrier);
  for (;;) {
    EndPhase(state, /*late=*/false);
    if (state.ended_phases % 2 != parity) break;
    Yield(State::kAtBarrier);
  }
  TheDevice().passed_barrier = true;
}

void CopyToCluster(void* to, const void* from, int64_t bytes,
                   const void* barrier, uint32_t ranks) {
  CheckAwaited();
  CHECK(bytes > 0 && bytes % 16 == 0) << bytes;
  CHECK_EQ(reinterpret_cast<uintptr_t>(to) % 16, 0u);
  CHECK_EQ(reinterpret_cast<uintptr_t>(from) % 16, 0u);
  for (int32_t rank = 0; ranks >> rank != 0; ++rank) {
    if ((ranks >> rank & 1) == 0) continue;
    auto* const there = const_cast<unsigned char*>(SharedOf(to, rank));
    SharedOf(static_cast<unsigned char*>(to) + bytes - 1, rank);
    std::memset(there, 0xff, bytes);
    BarrierAt(SharedOf(barrier, rank)).copies.push_back({there, from, bytes});
  }
}

void StartCopy(void* to, const void* from) {
  CheckAwaited();
  std::memset(to, 0xff, 16);
  TheDevice().current->open_copies.push_back({to, from});
}

void CommitCopies() {
  Fiber& fiber = *TheDevice().current;
  fiber.groups.push_back(std::move(fiber.open_copies));
  fiber.open_copies.clear();
}

void AwaitCopies(int pending) {
  Fiber& fiber = *TheDevice().current;
  while (static_cast<int>(fiber.groups.size()) > pending) {
    fiber.unfenced |= !fiber.groups.front().empty();
    for (const Copy& copy : fiber.groups.front()) {
      if (copy.from == nullptr) {
        std::memset(copy.to, 0, 16);
      } else {
        std::memcpy(copy.to, copy.from, 16);
      }
    }
    fiber.groups.pop_front();
  }
}

// 128 bytes more than a multiple of 1,024.
constexpr uint32_t kSharedBegin = 1024 + 128;

uint32_t SharedAddress(const void* shared) {
  const auto* const at = static_cast<const unsigned char*>(shared);
  CHECK(at >= SharedMemory() && at <= SharedMemory() + SharedBytes());
  return kSharedBegin + static_cast<uint32_t>(at - SharedMemory());
}

const unsigned char* SharedAt(uint32_t address) {
  CHECK(address >= kSharedBegin && address < kSharedBegin + SharedBytes())
      << TheDevice().kernel << ": " << address << " is not the block's memory";
  return SharedMemory() + (address - kSharedBegin);
}

void FenceForTensorCores() { TheDevice().current->unfenced = false; }

void BeginProducts() { TheDevice().current->begun = true; }

void StartProduct(float* sums, int count,
                  absl::AnyInvocable<void(float*)> multiply) {
  Device& device = TheDevice();
  Fiber& fiber = *device.current;
  CHECK(fiber.begun) << device.kernel << ": products that were not begun";
  const Fiber* const block = FibersOf(device, fiber.place.cluster_rank);
  for (int t = 0; t < fiber.place.threads; ++t) {
    CHECK(!block[t].unfenced)
        << device.kernel << ": thread " << t << " fenced no copies";
  }
  Sums& state = fiber.sums[sums];
  if (state.products++ == 0) state.values.assign(sums, sums + count);
  std::fill_n(sums, count, std::numeric_limits<float>::quiet_NaN());
  fiber.open_products.push_back({sums, std::move(multiply)});
}

void CommitProducts() {
  Fiber& fiber = *TheDevice().current;
  fiber.begun = false;
  fiber.product_groups.push_back(std::move(fiber.open_products));
  fiber.open_products.clear();
}

void AwaitProducts(int pending) {
  Fiber& fiber = *TheDevice().current;
  while (static_cast<int>(fiber.product_groups.size()) > pending) {
    for (Product& product : fiber.product_groups.front()) {
      const auto place = fiber.sums.find(product.sums);
      Sums& state = place->second;
      product.multiply(state.values.data());
      if (--state.products > 0) continue;
      std::copy(state.values.begin(), state.values.end(), product.sums);
      fiber.sums.erase(place);
    }
    fiber.product_groups.pop_front();
  }
}

}  // namespace baton::engine::cuda::emulated
