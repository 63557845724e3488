// Placement by predicted delay: a request goes where it, and those that run
// there already, lose the least time by it (scheduling/placement_cost.h has the
// formulas). So it is decided for each request whether its prompt is computed
// on the decode worker itself (conditional disaggregation) or on a prefill
// worker, whose cache has to travel then. Placements that are predicted to meet
// the request's targets come before others, whatever their delay; among those
// that miss, the one that misses least.
//
// Takes time in the number of workers. Each decode worker is tried by itself;
// of the pairs, those of the kPairs best prefill workers (by TTFT) with the
// kPairs best decode workers (by their own part of the delay) and the kCached
// with the longest cached prefix. That is the best of all pairs when there are
// no more workers than that, or all links are alike. Where every prefill worker
// is paired with every decode worker it is never worse than the best pair by
// more than the gap that the best prefill worker would leave at the best decode
// worker: all else of a pair's delay is a sum of its workers' parts.
#pragma once

#include <cstddef>
#include <vector>

#include "scheduling/placement.h"
#include "scheduling/placement_cost.h"

namespace baton::scheduling {

// Falls back to LeastLoadPlacement while no worker knows its costs, and for
// what it would refuse; a worker that does not know its own yet is taken for an
// average one of its role.
class CostModelPlacement final : public PlacementPolicy {
 public:
  static constexpr size_t kPairs = 8;
  static constexpr size_t kCached = 4;

  PlacementVerdict Place(const ClusterSnapshot& cluster,
                         const PlacementRequest& request) const override;
  std::vector<PlacementCandidate> Weigh(const ClusterSnapshot& cluster,
                                        const PlacementRequest& request,
                                        const PlacementVerdict& verdict,
                                        size_t most) const override;

 private:
  const LeastLoadPlacement least_load_{};
};

}  // namespace baton::scheduling
