#include "worker/worker_health.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace baton::worker {
namespace {

metrics::Page StatusPage(bool good, absl::string_view status) {
  return {.status = good ? 200 : 503,
          .content_type = "application/json",
          .body = absl::StrCat("{\"status\":\"", status, "\"}")};
}

}  // namespace

WorkerHealth::WorkerHealth(const Clock* clock)
    : clock_(clock), last_turn_(absl::ToUnixNanos(clock->Now())) {}

void WorkerHealth::Turned() {
  last_turn_.store(absl::ToUnixNanos(clock_->Now()), std::memory_order_relaxed);
}

void WorkerHealth::Serve() {
  State starting = State::kStarting;
  // A signal may have come before.
  state_.compare_exchange_strong(starting, State::kServing);
}

void WorkerHealth::Drain() { state_ = State::kDraining; }

metrics::Page WorkerHealth::Liveness() const {
  const absl::Duration since = SinceTurn();
  if (since <= kStuckAfter) return StatusPage(true, "alive");
  return {
      .status = 503,
      .content_type = "application/json",
      .body = absl::StrCat("{\"status\":\"stuck\",\"seconds_since_last_turn\":",
                           absl::ToInt64Seconds(since), "}")};
}

metrics::Page WorkerHealth::Readiness() const {
  if (SinceTurn() > kStuckAfter) return StatusPage(false, "stuck");
  switch (state_.load()) {
    case State::kStarting:
      return StatusPage(false, "starting");
    case State::kServing:
      return StatusPage(true, "ready");
    case State::kDraining:
      break;
  }
  return StatusPage(false, "draining");
}

absl::Duration WorkerHealth::SinceTurn() const {
  return clock_->Now() -
         absl::FromUnixNanos(last_turn_.load(std::memory_order_relaxed));
}

}  // namespace baton::worker
