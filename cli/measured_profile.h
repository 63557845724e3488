// The profile of a cluster that runs, by what its workers told its router.
// Pure; any thread.
#pragma once

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "baton/v1/inference.pb.h"
#include "planner/profile.h"

namespace baton::cli {

// Of one cluster, as it was at some times: of each kind of worker the mean of
// those that know their costs, over all times, and of links the one in the
// middle. FailedPrecondition when no decode worker knows its costs, or what
// they say makes no profile. REQUIRES: one time at least.
absl::StatusOr<planner::ClusterProfile> MeasuredProfile(
    absl::Span<const v1::GetClusterResponse> times);

}  // namespace baton::cli
