// Whether a worker's loop is to end, and for how long what it has may still
// run. Request() and requested() from any thread, the rest from the loop's.
#pragma once

#include <atomic>

#include "absl/time/time.h"

namespace baton::worker {

class Draining final {
 public:
  explicit Draining(absl::Duration patience) : patience_(patience) {}

  // Nothing new is taken from now on. Idempotent.
  void Request() { requested_ = true; }
  bool requested() const { return requested_; }

  // Whether what still runs has had its time. That begins when this is first
  // asked after Request().
  bool IsOver(absl::Time now) {
    if (!requested_) return false;
    if (until_ == absl::InfiniteFuture()) until_ = now + patience_;
    return now >= until_;
  }

 private:
  const absl::Duration patience_;
  std::atomic<bool> requested_{false};
  absl::Time until_ = absl::InfiniteFuture();
};

}  // namespace baton::worker
