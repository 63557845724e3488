// How much of a load any way of serving could carry at most: what the workers'
// time is enough for, with nobody waiting and no worker idle.
//
// A request that meets its targets takes of some worker the time of its
// prompt's tokens and of its answer's, wherever they are computed, and its
// share of the fixed cost of the answer's steps. A stream's steps take no more
// than its ITL target on average, and the streams of a step share its KV
// memory, so no more than so many share that cost. The prompt's own steps have
// none: all of it could be computed beside streams.
//
// Requests per second and worker. Pure.
#pragma once

#include "absl/types/span.h"
#include "planner/profile.h"
#include "workload/goodput.h"
#include "workload/planned_request.h"

namespace baton::bench {

struct CapacityBound {
  // When 90 % of the requests meet their targets, and nothing is spent on the
  // others: whoever they are, and when they are those that cost the most.
  double fair = 0;
  double any = 0;
};

// Of a load like these requests. REQUIRES: some of them have an answer of more
// than one token; an ITL target.
CapacityBound BoundOf(absl::Span<const workload::PlannedRequest> requests,
                      const planner::ClusterProfile& profile,
                      const workload::Targets& targets);

}  // namespace baton::bench
