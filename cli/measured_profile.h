// The profile of a cluster that runs, by what its workers told its router.
// Pure; any thread.
#pragma once

#include "absl/status/statusor.h"
#include "baton/v1/inference.pb.h"
#include "planner/profile.h"

namespace baton::cli {

// Of each kind of worker the mean of those that know their costs, and of links
// the one in the middle. FailedPrecondition when no decode worker knows its
// costs, or what they say makes no profile.
absl::StatusOr<planner::ClusterProfile> MeasuredProfile(
    const v1::GetClusterResponse& cluster);

}  // namespace baton::cli
