#include "scheduling/circuit_breaker.h"

#include <algorithm>

namespace baton::scheduling {

void CircuitBreaker::Succeeded() {
  open_ = false;
  probing_ = false;
  shut_until_ = absl::InfinitePast();
  open_for_ = absl::ZeroDuration();
  failures_.clear();
}

void CircuitBreaker::Failed(absl::Time now) {
  if (open_) {
    // A request from before it opened says nothing new.
    if (state(now) == State::kOpen) return;
    probing_ = false;
    open_for_ = std::min(2 * open_for_, options_.max_open);
    shut_until_ = now + open_for_;
    return;
  }
  failures_.push_back(now);
  std::erase_if(failures_,
                [&](absl::Time at) { return now - at > options_.window; });
  if (static_cast<int>(failures_.size()) < options_.failures) return;
  failures_.clear();
  open_ = true;
  open_for_ = options_.min_open;
  shut_until_ = now + open_for_;
}

void CircuitBreaker::Sent(absl::Time now) {
  // The probe; the others wait for what comes of it.
  if (open_ && Allows(now)) {
    probing_ = true;
    shut_until_ = now + open_for_;
  }
}

CircuitBreaker::State CircuitBreaker::state(absl::Time now) const {
  if (!open_) return State::kClosed;
  return probing_ || Allows(now) ? State::kHalfOpen : State::kOpen;
}

absl::Time CircuitBreaker::NextDue(absl::Time now) const {
  return Allows(now) ? absl::InfinitePast() : shut_until_;
}

}  // namespace baton::scheduling
