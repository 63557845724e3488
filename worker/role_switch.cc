#include "worker/role_switch.h"

#include "common/log.h"
#include "scheduling/role_balance.h"

namespace baton::worker {

const char* RoleLabel(v1::WorkerRole role) {
  return role == v1::WORKER_ROLE_PREFILL ? "prefill" : "decode";
}

RoleSwitch::RoleSwitch(v1::WorkerRole first, metrics::Metrics* metrics,
                       const Clock* clock)
    : metrics_(metrics),
      clock_(clock),
      role_(first),
      switch_seconds_(metrics->Histogram(
          "baton_role_switch_seconds",
          "From a change of the worker's role until what ran in the role "
          "before had ended.",
          metrics::RequestBuckets())) {
  // Both are there from the beginning.
  for (const auto role : {v1::WORKER_ROLE_PREFILL, v1::WORKER_ROLE_DECODE}) {
    const auto other = role == v1::WORKER_ROLE_PREFILL
                           ? v1::WORKER_ROLE_DECODE
                           : v1::WORKER_ROLE_PREFILL;
    metrics_->Counter("baton_role_switch_total",
                      "Changes of the worker's role.",
                      {{"from", RoleLabel(other)}, {"to", RoleLabel(role)}});
  }
  ShowRole();
}

bool RoleSwitch::standby(v1::WorkerRole side) const {
  const bool is_prefill = side == v1::WORKER_ROLE_PREFILL;
  return !scheduling::TakesWork(
      is_prefill ? scheduling::WorkerRole::kPrefill
                 : scheduling::WorkerRole::kDecode,
      side == role_, /*streams=*/leaving_since_.has_value() ? 1 : 0,
      absl::ToDoubleSeconds(clock_->Now() - changed_at_));
}

bool RoleSwitch::Set(v1::WorkerRole role, const std::string& reason) {
  if (role != v1::WORKER_ROLE_PREFILL && role != v1::WORKER_ROLE_DECODE) {
    LOG(WARNING) << "a router asked for a role that there is not: "
                 << static_cast<int>(role);
    return false;
  }
  if (role == role_) return true;
  const absl::Time now = clock_->Now();
  if (role == v1::WORKER_ROLE_PREFILL && now < changed_at_ + kLeastTime) {
    return false;
  }
  LOG(INFO) << "role " << RoleLabel(role) << ", no more " << RoleLabel(role_)
            << (reason.empty() ? "" : ": ") << reason;
  metrics_
      ->Counter("baton_role_switch_total", "Changes of the worker's role.",
                {{"from", RoleLabel(role_)}, {"to", RoleLabel(role)}})
      ->Increment();
  role_ = role;
  changed_at_ = now;
  leaving_since_ = now;
  ShowRole();
  return true;
}

void RoleSwitch::ObserveStandby(bool empty) {
  if (!empty || !leaving_since_.has_value()) return;
  switch_seconds_->Observe(
      absl::ToDoubleSeconds(clock_->Now() - *leaving_since_));
  leaving_since_.reset();
}

void TakeSetRole(const v1::SetRole& wish, RoleSwitch* roles) {
  if (roles == nullptr) {
    LOG(WARNING) << "a router asked for another role, this worker has one";
    return;
  }
  roles->Set(wish.role(), wish.reason());
}

void RoleSwitch::ShowRole() {
  for (const auto role : {v1::WORKER_ROLE_PREFILL, v1::WORKER_ROLE_DECODE}) {
    metrics_
        ->Gauge("baton_worker_role",
                "1 of the role that the worker has now, 0 of the other.",
                {{"role", RoleLabel(role)}})
        ->Set(role == role_ ? 1 : 0);
  }
}

}  // namespace baton::worker
