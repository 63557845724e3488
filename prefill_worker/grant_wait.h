// How long a prompt waits to be told where its KV goes. Router and decode
// worker tell a prefill worker with a grant, which comes some tenths of a
// millisecond after the prompt when nothing is in its way. A prompt that one
// step computes has that step alone to hide its hand-off behind: layers that
// are done before the grant is there go out afterwards, all of them. So where
// nothing else is to be computed, a step waits for the grant, if it is expected
// within a fiftieth of what the step takes.
//
// What is expected is the quickest of the last few grants. They are late where
// the decode worker is in the middle of long steps, as when many prompts come
// at once; an average of these would outlast the crowd by a dozen prompts, each
// of which handed over all of its KV behind its step.
//
// Pure. One thread.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>

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
    last_[next_] = std::max(after, absl::ZeroDuration());
    next_ = (next_ + 1) % kLast;
  }

  // How long a prompt may wait, from when it came, whose step is expected to
  // take `step`. Zero: it need not.
  absl::Duration For(absl::Duration step) const {
    if (expected() > kShare * step) return absl::ZeroDuration();
    return std::min(kPatience * expected(), kMost);
  }

  absl::Duration expected() const {
    return *std::min_element(last_.begin(), last_.end());
  }

 private:
  // Those of workers that have nothing else to do, on one host.
  static constexpr absl::Duration kAtFirst = absl::Microseconds(300);
  static constexpr size_t kLast = 4;
  std::array<absl::Duration, kLast> last_ = {kAtFirst, kAtFirst, kAtFirst,
                                             kAtFirst};
  size_t next_ = 0;
};

}  // namespace baton::prefill_worker
