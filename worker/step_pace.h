// What a step costs those who wait for it: while work goes on, the time from
// the end of the step before to its own end, with all that the loop does in
// between (taking messages, sending tokens). With a small model that is more
// than the step itself, and costs that left it out would promise streams that
// no worker can keep up.
//
// One thread, the loop's.
#pragma once

#include <algorithm>
#include <optional>

#include "absl/time/time.h"

namespace baton::worker {

class StepPace final {
 public:
  // The loop has nothing to run: the next step follows no other.
  void Idle() { last_end_.reset(); }

  // What has costs of its own took so long, before the next step.
  void Apart(absl::Duration time) {
    if (last_end_.has_value()) *last_end_ += time;
  }

  // A step ran from `started` to `ended`. The seconds that it cost, >= 0.
  double Step(absl::Time started, absl::Time ended) {
    const absl::Time since = std::min(last_end_.value_or(started), started);
    last_end_ = ended;
    return std::max(0.0, absl::ToDoubleSeconds(ended - since));
  }

 private:
  std::optional<absl::Time> last_end_;
};

}  // namespace baton::worker
