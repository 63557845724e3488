#include "worker/worker_health.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace baton::worker {
namespace {

metrics::Page StatusPage(bool good, absl::string_view status,
                         absl::string_view members = "") {
  return {.status = good ? 200 : 503,
          .content_type = "application/json",
          .body = absl::StrCat("{\"status\":\"", status, "\"", members, "}")};
}

std::string Silent(absl::string_view what, absl::Duration silence) {
  return absl::StrCat(",\"seconds_since_last_", what,
                      "\":", absl::ToInt64Seconds(silence));
}

}  // namespace

WorkerHealth::WorkerHealth(const Clock* clock)
    : clock_(clock), turn_(clock), progress_(clock) {}

std::function<void()> WorkerHealth::AddDataPlane() {
  Pulse* const pulse = &data_planes_.emplace_back(clock_);
  return [pulse] { pulse->Beat(); };
}

void WorkerHealth::Turned(const LoopProgress& progress) {
  turn_.Beat();
  if (!progress.has_work || progress.steps != steps_) progress_.Beat();
  steps_ = progress.steps;
}

void WorkerHealth::Serve() {
  State starting = State::kStarting;
  // A signal may have come before.
  state_.compare_exchange_strong(starting, State::kServing);
}

void WorkerHealth::Drain() { state_ = State::kDraining; }

std::optional<std::string> WorkerHealth::WhatIsStuck() const {
  if (turn_.Silence() > kStuckAfter) return Silent("turn", turn_.Silence());
  for (const Pulse& plane : data_planes_) {
    if (plane.Silence() > kStuckAfter) {
      return Silent("data_plane_tick", plane.Silence());
    }
  }
  return std::nullopt;
}

metrics::Page WorkerHealth::Liveness() const {
  if (const auto stuck = WhatIsStuck()) {
    return StatusPage(false, "stuck", *stuck);
  }
  return StatusPage(true, "alive");
}

metrics::Page WorkerHealth::Readiness() const {
  if (const auto stuck = WhatIsStuck()) {
    return StatusPage(false, "stuck", *stuck);
  }
  switch (state_.load()) {
    case State::kStarting:
      return StatusPage(false, "starting");
    case State::kServing:
      if (progress_.Silence() > kStuckAfter) {
        return StatusPage(false, "stuck", Silent("step", progress_.Silence()));
      }
      return StatusPage(true, "ready");
    case State::kDraining:
      break;
  }
  return StatusPage(false, "draining");
}

}  // namespace baton::worker
