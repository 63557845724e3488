// Copies, barriers and products that run beside the threads that start them:
// done when somebody waits for them, and not before.
#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "common/log.h"
#include "tests/support/emulated_device/fiber_device.h"
#include "tests/support/emulated_device/fibers.h"

namespace baton::engine::cuda::emulated {
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
  const int64_t before = barrier.ended_phases;
  EndPhase(barrier, /*late=*/true);
  // Whatever the thread, or its warp, should have done before shows now.
  if (barrier.ended_phases > before) Yield(State::kArrived);
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

void Arrive(const void* barrier) { Arrive(BarrierAt(barrier), 0); }

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

void StartCopy(void* to, const void* from, bool weights) {
  if (!weights) CheckAwaited();
  std::memset(to, 0xff, 16);
  Copy copy = {to, from, weights, {}};
  if (from != nullptr) std::memcpy(copy.bytes, from, 16);
  TheDevice().current->open_copies.push_back(copy);
}

void CommitCopies() {
  Fiber& fiber = *TheDevice().current;
  fiber.groups.push_back(std::move(fiber.open_copies));
  fiber.open_copies.clear();
}

void AwaitCopies(int pending) {
  Fiber& fiber = *TheDevice().current;
  while (static_cast<int>(fiber.groups.size()) > pending) {
    for (const Copy& copy : fiber.groups.front()) {
      fiber.unfenced |= !copy.weights;
      if (copy.from == nullptr) {
        std::memset(copy.to, 0, 16);
      } else {
        // A device may have read it at any time.
        CHECK_EQ(std::memcmp(copy.bytes, copy.from, 16), 0)
            << TheDevice().kernel << ": what is copied is written meanwhile";
        std::memcpy(copy.to, copy.bytes, 16);
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

void ExpectFence() { TheDevice().current->unfenced = true; }

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
  Exchange(nullptr, 0);  // the lanes wait together
}

}  // namespace baton::engine::cuda::emulated
