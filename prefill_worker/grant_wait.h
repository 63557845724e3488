// How long a prompt waits to be told where its KV goes. Router and decode
// worker tell a prefill worker with a grant, which comes some tenths of a
// millisecond after the prompt when nothing is in its way. A prompt that one
// step computes has that step alone to hide its hand-off behind: layers that
// are done before the grant is there go out afterwards, all of them. So where
// nothing else is to be computed, a step waits for the grant, if it is expected
// within a fiftieth of what the step takes.
//
// Pure. One thread.
#pragma once

#include <algorithm>

#include "absl/time/time.h"

namespace baton::prefill_worker {

class GrantWait final {
 public:
  // Of the step's time, at most what a grant is expected to take.
  static constexpr double kShare = 0.02;
  // Times what is expected; then the prompt is computed without it.
  static constexpr int kPatience = 3;
  static constexpr absl::Duration kMost = absl::Milliseconds(5);

  // A grant came so long after its prompt.
  void Came(absl::Duration after) {
    after = std::clamp(after, absl::ZeroDuration(), absl::Seconds(1));
    expected_ += (after - expected_) / 8;
  }

  // How long a prompt may wait, from when it came, whose step is expected to
  // take `step`. Zero: it need not.
  absl::Duration For(absl::Duration step) const {
    if (expected_ > kShare * step) return absl::ZeroDuration();
    return std::min(kPatience * expected_, kMost);
  }

  absl::Duration expected() const { return expected_; }

 private:
  // Of workers that have nothing else to do, on one host.
  absl::Duration expected_ = absl::Microseconds(300);
};

}  // namespace baton::prefill_worker
