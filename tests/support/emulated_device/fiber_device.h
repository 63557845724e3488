// What the parts of the device that the CPU plays share: its threads and where
// each of them stands. For fibers.cc and async_work.cc.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/functional/function_ref.h"
#include "tests/support/emulated_device/fiber_context.h"
#include "tests/support/emulated_device/fibers.h"

namespace baton::engine::cuda::emulated {

inline constexpr int kLanes = 32;

// kArrived: ended a barrier's phase, and lets those go on who waited for that.
enum class State {
  kReady,
  kAtWarp,
  kAtBarrier,
  kArrived,
  kAtBlock,
  kAtCluster,
  kDone
};

struct Copy {
  void* to;
  const void* from;
  bool weights;             // which tensor cores do not read by themselves
  unsigned char bytes[16];  // what was there when it began
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

// What every switch looks at comes first, in one line of the cache.
struct alignas(64) Fiber {
  FiberContext context;
  State state = State::kDone;
  ThreadPlace place;
  void* fake_stack = nullptr;
  std::unique_ptr<char[]> stack;
  std::vector<Copy> open_copies;
  std::deque<std::vector<Copy>> groups;
  bool unfenced = false;  // what it wrote that tensor cores may not see
  bool begun = false;
  std::map<float*, Sums> sums;
  std::vector<Product> open_products;
  std::deque<std::vector<Product>> product_groups;
};

// What lanes hand each other; two, because a fast lane may come to the next
// exchange while a slow one still reads this one.
struct Warp {
  int waiting = 0;                             // lanes that are kAtWarp
  void (*join)(ExchangeWords* all) = nullptr;  // of those
  uint32_t exchanges = 0;
  ExchangeWords words[2][kLanes];
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
  int64_t size = -1;  // of the memory of blocks that find room there
  unsigned char* begin = nullptr;
};

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
  bool from_scheduler = false;  // not from another fiber
  FiberContext context;         // where the scheduler waits
  const void* stack_bottom = nullptr;
  size_t stack_size = 0;
};

inline Device& TheDevice() {
  static Device* const device = new Device;
  return *device;
}

// The first fiber of a block.
inline Fiber* FibersOf(Device& device, int block) {
  return &device.fibers[static_cast<size_t>(block) * device.threads];
}

// From a fiber to others, until it may go on.
void Yield(State state);

}  // namespace baton::engine::cuda::emulated
