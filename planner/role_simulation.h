// The part of a simulated router that says which dual workers change their
// roles (scheduling/role_balance.h), by what it knows of them.
//
// Seconds of the virtual clock. One thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "planner/fleet_simulation.h"
#include "planner/profile.h"
#include "planner/router_simulation.h"
#include "scheduling/request_mix.h"
#include "scheduling/role_balance.h"
#include "workload/planned_request.h"

namespace baton::planner {

class RoleSimulation final {
 public:
  // `workers` dual workers, of which the first so many are prefill workers.
  RoleSimulation(const ClusterProfile& profile, int32_t workers,
                 int32_t first_prefill_roles, bool allow_local_prefill,
                 absl::Span<const workload::PlannedRequest> requests,
                 double itl_target_seconds);

  // When Decide is to be called: once a second.
  double next() const { return next_; }
  // Who changes. Their sides are known to the router as those of
  // FleetOptions::dual_workers.
  std::vector<scheduling::RoleChange> Decide(const RouterSimulation& router,
                                             const FleetSimulation& fleet,
                                             double now);

  // A request was placed; ended.
  void Began(uint32_t request, double now);
  void Ended(uint32_t request, double now);

  int64_t num_changes() const { return num_changes_; }

 private:
  // Streams of a decode worker that its memory and its bound leave room for.
  int32_t MostStreams(const scheduling::RequestMean& mix) const;

  const WorkerProfile decode_;
  const absl::Span<const workload::PlannedRequest> requests_;
  const double itl_target_;
  std::vector<int32_t> told_;  // by request: output that the mix knows of
  scheduling::RoleLoad load_;
  std::vector<scheduling::RoleWorker> workers_;
  scheduling::RequestMix mix_;
  scheduling::RoleBalance balance_;
  double next_ = 1;
  int64_t num_changes_ = 0;
};

}  // namespace baton::planner
