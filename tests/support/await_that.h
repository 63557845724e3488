// Waits for what comes soon but cannot be waited on: looks again and again,
// with a short pause between two looks. From any thread; false, and the test
// goes on, when it is not so at the deadline.
#pragma once

#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "common/clock.h"

namespace baton::test {

// `condition` is called at least once, on this thread. The patience is for a
// sanitizer build on a busy machine; a test that passes never waits that long.
template <typename Condition>
[[nodiscard]] bool AwaitThat(Condition condition,
                             absl::Duration patience = absl::Seconds(60)) {
  const absl::Time deadline = Clock::Monotonic()->Now() + patience;
  const absl::Notification never;
  while (!condition()) {
    if (Clock::Monotonic()->Now() >= deadline) return false;
    never.WaitForNotificationWithTimeout(absl::Milliseconds(2));
  }
  return true;
}

}  // namespace baton::test
