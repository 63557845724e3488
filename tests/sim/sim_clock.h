// Time that moves only when the simulation says so. One thread.
#pragma once

#include "common/clock.h"

namespace baton::sim {

class SimClock final : public Clock {
 public:
  absl::Time Now() const override { return now_; }
  void Advance(absl::Duration by) { now_ += by; }

 private:
  absl::Time now_ = absl::UnixEpoch() + absl::Hours(1);
};

}  // namespace baton::sim
