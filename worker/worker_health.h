// What a worker's pages /healthz and /readyz say, at its metrics port, for
// whoever starts and stops processes. Routers do not ask: workers tell them
// over the control stream.
//
// Turned is for the thread of the loop, the pages and what AddDataPlane gives
// for any, the rest for the thread that starts the process.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <string>

#include "absl/time/time.h"
#include "common/clock.h"
#include "common/metrics/page_server.h"

namespace baton::worker {

// Whether a loop gets on with what it has to compute.
struct LoopProgress {
  bool has_work = false;
  uint64_t steps = 0;  // so far
};

class WorkerHealth final {
 public:
  // What is silent for so long is stuck. As the router thinks of it
  // (router/worker_registry.h): a step of a large model may take long.
  static constexpr absl::Duration kStuckAfter = absl::Seconds(60);

  explicit WorkerHealth(const Clock* clock);

  // A progress thread of the data plane that from now on calls what this
  // returns, more often than kStuckAfter. REQUIRES: no page was asked for yet.
  std::function<void()> AddDataPlane();
  // The loop has taken a turn.
  void Turned(const LoopProgress& progress);
  // From now on routers can connect; a loop that was not asked to stop yet.
  void Serve();
  // It takes nothing new.
  void Drain();

  // 200 while the loop takes its turns and the data plane its own, else 503.
  metrics::Page Liveness() const;
  // 200 from Serve to Drain while that is so, and the loop takes steps when
  // there is something to compute, else 503.
  metrics::Page Readiness() const;

 private:
  enum class State { kStarting, kServing, kDraining };

  // When something was last seen, in nanoseconds of the clock: an absl::Time
  // has no lock-free atomic.
  class Pulse {
   public:
    explicit Pulse(const Clock* clock) : clock_(clock) { Beat(); }
    void Beat() {
      last_.store(absl::ToUnixNanos(clock_->Now()), std::memory_order_relaxed);
    }
    absl::Duration Silence() const {
      return clock_->Now() -
             absl::FromUnixNanos(last_.load(std::memory_order_relaxed));
    }

   private:
    const Clock* const clock_;
    std::atomic<int64_t> last_{0};
  };

  // What is silent for too long, and for how long, as members of a JSON object.
  std::optional<std::string> WhatIsStuck() const;

  const Clock* const clock_;
  Pulse turn_;
  // The last step, or turn without anything to compute.
  Pulse progress_;
  uint64_t steps_ = 0;  // at the last turn
  std::deque<Pulse> data_planes_;
  std::atomic<State> state_ = State::kStarting;
};

}  // namespace baton::worker
