// A thread for each rank of an engine (rank_group.h): rank 0 is whoever calls,
// the others have one of their own, which sleeps between calls. No device is
// called but by what RankThreads is given.
//
// Called by one thread at a time.
#pragma once

#include <cstdint>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/synchronization/mutex.h"
#include "scheduling/step_plan.h"

namespace baton::engine::cuda {

class RankThreads final {
 public:
  // `use_device` selects a rank's device for the thread that calls it, such as
  // UseDevice (device_runtime.h).
  RankThreads(int32_t ranks, void (*use_device)(int32_t rank));
  ~RankThreads();
  RankThreads(const RankThreads&) = delete;
  RankThreads& operator=(const RankThreads&) = delete;

  // Calls run(rank) for all ranks at the same time, with their devices
  // selected, and returns when all calls have; rank 0's device is the caller's
  // then.
  void Run(absl::FunctionRef<void(int32_t rank)> run);

 private:
  void RunThread(int32_t rank);

  void (*const use_device_)(int32_t rank);
  absl::Mutex mu_;
  // Of the call under way; null: none, or the threads are to end.
  const absl::FunctionRef<void(int32_t)>* call_ ABSL_GUARDED_BY(mu_) = nullptr;
  uint64_t calls_ ABSL_GUARDED_BY(mu_) = 0;
  int32_t running_ ABSL_GUARDED_BY(mu_) = 0;
  bool ends_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<std::thread> threads_;
};

// Where the ranks of a step wait for each other.
class RankMeeting final {
 public:
  explicit RankMeeting(int32_t ranks) : ranks_(ranks) {}

  // Returns when all ranks have called it as often as the caller: whether all
  // said yes. By their threads.
  bool Meet(bool yes = true) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  const int32_t ranks_;
  absl::Mutex mu_;
  int32_t there_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t meetings_ ABSL_GUARDED_BY(mu_) = 0;     // that are over
  bool yes_ ABSL_GUARDED_BY(mu_) = true;           // so far
  bool all_said_yes_ ABSL_GUARDED_BY(mu_) = true;  // at the last one
};

// Tells all ranks of a step that rank 0 hears of while its device runs another.
// Once in each step that runs, rank 0 calls End, and the others call Take.
class StepRelay final {
 public:
  explicit StepRelay(int32_t ranks) : ranks_(ranks) {}

  // Before a step. REQUIRES: no rank is in one.
  void Begin() ABSL_LOCKS_EXCLUDED(mu_);
  // By rank 0, once at most: the others call `take` with the plan. Returns when
  // all have.
  void Give(const scheduling::StepPlan& plan) ABSL_LOCKS_EXCLUDED(mu_);
  // By rank 0: nothing more is given.
  void End() ABSL_LOCKS_EXCLUDED(mu_);
  // By the others: blocks until there is a plan, or none comes.
  void Take(absl::FunctionRef<void(const scheduling::StepPlan&)> take)
      ABSL_LOCKS_EXCLUDED(mu_);

 private:
  const int32_t ranks_;
  absl::Mutex mu_;
  const scheduling::StepPlan* plan_ ABSL_GUARDED_BY(mu_) = nullptr;
  int32_t taken_ ABSL_GUARDED_BY(mu_) = 0;
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
};

// Says how many layers of a step all ranks have done.
class LayerGate final {
 public:
  explicit LayerGate(int32_t ranks) : layers_(ranks, 0) {}

  // Before a step. REQUIRES: no rank is in one.
  void Begin() ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    layers_.assign(layers_.size(), 0);
  }
  // The rank has done layers [0, layer].
  void Pass(int32_t rank, int32_t layer) ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    layers_[rank] = layer + 1;
  }
  // Blocks until all ranks but 0 have done `layer`.
  void Await(int32_t layer) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  absl::Mutex mu_;
  std::vector<int32_t> layers_ ABSL_GUARDED_BY(mu_);
};

}  // namespace baton::engine::cuda
