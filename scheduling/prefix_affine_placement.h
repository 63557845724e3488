// Placement by what is cached and by load: a prompt goes where most of its
// prefix is, unless too much waits there. Load is in every comparison, so one
// popular prefix cannot gather all requests on one worker.
//
//   prefill  cost = 2 * tokens that are not cached there + tokens queued
//   decode   cost = (w * tokens that are not cached there + tokens queued) / s
//                   + load
//
// `load` is that of least-load, in [0, 2]; s = max(prompt, token budget), so
// that a whole prefix is worth at most the range of loads, and that of a short
// prompt less. w is 2 where the decode worker prefills by itself, and 1/16
// where it only receives what it lacks, which takes that much less than
// computing it, or less still. Among equal costs the less loaded one. What is
// computed twice takes time from all that come later, and room in two caches:
// so it counts twice (docs/planner.md has what that brings).
//
// Knows nothing of what steps cost, so it asks for a prefill worker whenever
// one is paired. Pure; any thread.
#pragma once

#include <cstddef>
#include <vector>

#include "scheduling/placement.h"

namespace baton::scheduling {

class PrefixAffinePlacement final : public PlacementPolicy {
 public:
  PlacementVerdict Place(const ClusterSnapshot& cluster,
                         const PlacementRequest& request) const override;
  std::vector<PlacementCandidate> Weigh(const ClusterSnapshot& cluster,
                                        const PlacementRequest& request,
                                        const PlacementVerdict& verdict,
                                        size_t most) const override;
};

}  // namespace baton::scheduling
