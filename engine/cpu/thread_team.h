// A persistent team of threads that splits loops: the CPU backend's only
// parallelism.
//
// ParallelFor is called by one thread at a time, which takes part in the work.
// Threads of the team spin for a few microseconds after a loop and then sleep
// in the kernel: an idle team uses no CPU. Which thread runs which item is not
// defined, so items must not depend on it.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "absl/functional/function_ref.h"

namespace baton::engine::cpu {

class ThreadTeam final {
 public:
  // Runs item `item` on thread `thread` of the team, 0 <= thread <
  // num_threads().
  using Body = absl::FunctionRef<void(int64_t item, int32_t thread)>;

  // The team has `num_threads` threads, the caller of ParallelFor included;
  // 0 takes as many as the process may use CPUs, or as its control group's
  // quota keeps busy, when that is less. With `pin`, each of the others
  // stays on a CPU of its own, thread i on the i-th that the process may use.
  // Not done when there are fewer CPUs than threads, nor where the system
  // forbids it.
  // REQUIRES: num_threads >= 0.
  explicit ThreadTeam(int32_t num_threads, bool pin = false);
  ~ThreadTeam();
  ThreadTeam(const ThreadTeam&) = delete;
  ThreadTeam& operator=(const ThreadTeam&) = delete;

  int32_t num_threads() const { return num_threads_; }

  // Pins the calling thread too, when the team is pinned: for a thread that
  // does nothing but call ParallelFor. Threads that it starts later inherit
  // that.
  void PinCaller();

  // Runs body(item, thread) for every item of [0, num_items) and returns when
  // all are done. What the items wrote is then visible to the caller. Items are
  // handed out one by one in rising order, so they should be worth a few
  // microseconds each.
  // REQUIRES: num_items < 2^31; not called from within a body.
  void ParallelFor(int64_t num_items, Body body);

 private:
  void RunThread(int32_t thread);
  // Takes items of the loop that is open until there are none left.
  void TakeItems(int32_t thread);

  const int32_t num_threads_;
  // CPU of each thread; empty when they are not pinned.
  const std::vector<int32_t> cpus_;
  bool caller_pinned_ = false;

  // The state of the current loop in one word, so that a thread that wakes up
  // late cannot take an item of another loop: the number of the loop in the
  // high half, the next item in the low half, kClosed when there is none.
  //
  // A loop is written while the word says kClosed, and opened by storing item
  // 0. A thread takes item i by moving the word from (loop, i) to (loop, i + 1)
  // and may use what it read of the loop only if that succeeds: the loop cannot
  // be over before the item is done.
  std::atomic<uint64_t> ticket_;
  std::atomic<const Body*> body_{nullptr};
  std::atomic<uint32_t> num_items_{0};
  std::atomic<uint32_t> items_done_{0};

  // Rises with each loop; what sleeping threads wait for.
  std::atomic<uint32_t> wake_count_{0};
  std::atomic<bool> stop_{false};
  std::vector<std::thread> threads_;
};

}  // namespace baton::engine::cpu
