// Time as Baton reads it. Decisions (scheduling/) are given the time; only
// loops, services and timers read a clock, and they read this one.
#pragma once

#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace baton {

// A source of time that tests can move by hand. Now() may be called from any
// thread.
class Clock {
 public:
  virtual ~Clock() = default;

  // Monotonic: never goes back, not even when the wall clock is set. Only
  // differences of two readings of one process mean anything.
  virtual absl::Time Now() const = 0;

  // The process's monotonic clock.
  static const Clock* Monotonic();
};

}  // namespace baton
