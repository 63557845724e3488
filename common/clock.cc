#include "common/clock.h"

#include <chrono>

namespace baton {
namespace {

class MonotonicClock final : public Clock {
 public:
  absl::Time Now() const override {
    return absl::UnixEpoch() +
           absl::FromChrono(
               std::chrono::steady_clock::now().time_since_epoch());
  }
};

}  // namespace

const Clock* Clock::Monotonic() {
  static const MonotonicClock clock;
  return &clock;
}

}  // namespace baton
