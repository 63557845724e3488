// What a worker's pages /healthz and /readyz say, at its metrics port, for
// whoever starts and stops processes. Routers do not ask: workers tell them
// over the control stream.
//
// Turned is for the thread of the loop, the pages for any, the rest for the
// thread that starts the process.
#pragma once

#include <atomic>
#include <cstdint>

#include "absl/time/time.h"
#include "common/clock.h"
#include "common/metrics/page_server.h"

namespace baton::worker {

class WorkerHealth final {
 public:
  // A loop without a turn for so long is stuck. As the router thinks of it
  // (router/worker_registry.h): a step of a large model may take long.
  static constexpr absl::Duration kStuckAfter = absl::Seconds(60);

  explicit WorkerHealth(const Clock* clock);

  // The loop has taken a turn.
  void Turned();
  // From now on routers can connect; a loop that was not asked to stop yet.
  void Serve();
  // It takes nothing new.
  void Drain();

  // 200 while the loop takes its turns, else 503.
  metrics::Page Liveness() const;
  // 200 from Serve to Drain, unless the loop is stuck, else 503.
  metrics::Page Readiness() const;

 private:
  enum class State { kStarting, kServing, kDraining };

  absl::Duration SinceTurn() const;

  const Clock* const clock_;
  // Nanoseconds of the clock; an absl::Time has no lock-free atomic.
  std::atomic<int64_t> last_turn_;
  std::atomic<State> state_ = State::kStarting;
};

}  // namespace baton::worker
