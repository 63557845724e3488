#include "engine/cpu/ceilings.h"

#include <algorithm>
#include <atomic>

#include "absl/functional/function_ref.h"
#include "absl/time/clock.h"
#include "common/status_macros.h"
#include "engine/cpu/ceiling_loops.h"
#include "engine/cpu/kernel_choice.h"
#include "engine/cpu/memory_arena.h"
#include "engine/cpu/thread_team.h"

namespace baton::engine::cpu {
namespace {

constexpr int64_t kLeastMemory = int64_t{16} << 20;
// One read by one thread; small enough that all end at about the same time.
constexpr int64_t kReadBytes = int64_t{4} << 20;
// Of arithmetic: together about a millisecond.
constexpr int64_t kRounds = (int64_t{1} << 16) + 1;
constexpr int64_t kItemsPerThread = 4;

const CeilingLoops* FindLoops(absl::string_view name) {
#if defined(__x86_64__)
  for (const CeilingLoops* loops :
       {&kAvx512Bf16CeilingLoops, &kAvx2CeilingLoops}) {
    if (name == loops->name) return loops;
  }
#endif
  return &kPortableCeilingLoops;
}

// Memory with something in it: pages that were never written are all the same
// one. Halves *bytes until it is to be had.
absl::StatusOr<MemoryArena> GetMemory(ThreadTeam& team, int64_t* bytes) {
  for (;; *bytes /= 2) {
    *bytes = *bytes / kReadBytes * kReadBytes;
    absl::StatusOr<MemoryArena> memory =
        MemoryArena::Allocate(*bytes, "measuring reads");
    if (!memory.ok()) {
      if (*bytes / 2 < kLeastMemory) return memory;
      continue;
    }
    team.ParallelFor(*bytes / kReadBytes, [&](int64_t item, int32_t) {
      std::fill_n(memory->memory().data() + item * kReadBytes, kReadBytes,
                  static_cast<std::byte>(item | 1));
    });
    return memory;
  }
}

// The best rate of `round`, which does `work`, in 1e9 per second.
double BestRate(double work, absl::Duration time,
                absl::FunctionRef<void()> round) {
  round();  // wakes the threads and the CPU's clock
  const absl::Time end = absl::Now() + time;
  absl::Duration best = absl::InfiniteDuration();
  int rounds = 0;
  absl::Time begin = absl::Now();
  do {
    round();
    const absl::Time now = absl::Now();
    best = std::min(best, now - begin);
    begin = now;
    ++rounds;
  } while (rounds < 2 || begin < end);
  return work / std::max(absl::ToDoubleSeconds(best), 1e-9) / 1e9;
}

}  // namespace

absl::StatusOr<Ceilings> MeasureCeilings(const CeilingOptions& options) {
  BATON_ASSIGN_OR_RETURN(const Kernels* kernels, FindKernels(options.isa));
  const CeilingLoops& loops = *FindLoops(kernels->name);
  ThreadTeam team(options.num_threads);
  Ceilings ceilings;
  // What the loops return goes here, so that none of them is left out.
  std::atomic<uint64_t> sink{0};
  const int64_t items = kItemsPerThread * team.num_threads();
  const double work = static_cast<double>(items) * kRounds;
  ceilings.bf16_gflops =
      BestRate(work * loops.bf16_operations, options.time_each, [&] {
        team.ParallelFor(items, [&](int64_t, int32_t) {
          sink.fetch_add(loops.bf16(kRounds) > 0, std::memory_order_relaxed);
        });
      });
  ceilings.int8_gops =
      BestRate(work * loops.int8_operations, options.time_each, [&] {
        team.ParallelFor(items, [&](int64_t, int32_t) {
          sink.fetch_add(loops.int8(kRounds) > 0, std::memory_order_relaxed);
        });
      });
  int64_t bytes = std::max(options.memory_bytes, kLeastMemory);
  BATON_ASSIGN_OR_RETURN(const MemoryArena memory, GetMemory(team, &bytes));
  const std::byte* const data = memory.memory().data();
  ceilings.memory_gbs =
      BestRate(static_cast<double>(bytes), options.time_each, [&] {
        team.ParallelFor(bytes / kReadBytes, [&](int64_t item, int32_t) {
          sink.fetch_add(loops.read(data + item * kReadBytes, kReadBytes),
                         std::memory_order_relaxed);
        });
      });
  return ceilings;
}

}  // namespace baton::engine::cpu
