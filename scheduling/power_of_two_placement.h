// Placement by the power of two choices: of two decode workers drawn by chance,
// the less loaded one, and likewise of two prefill workers the one with fewer
// tokens queued (Mitzenmacher, "The Power of Two Choices in Randomized Load
// Balancing", 2001). What is known of workers is always a little old, and
// several routers know the same: where least-load would send all of them to one
// worker until its next report, chance spreads them.
//
// The draw depends on ClusterSnapshot::round alone: the same snapshot gives the
// same verdict. Pure; any thread.
#pragma once

#include <cstddef>
#include <vector>

#include "scheduling/placement.h"

namespace baton::scheduling {

class PowerOfTwoPlacement final : public PlacementPolicy {
 public:
  PlacementVerdict Place(const ClusterSnapshot& cluster,
                         const PlacementRequest& request) const override;
  std::vector<PlacementCandidate> Weigh(const ClusterSnapshot& cluster,
                                        const PlacementRequest& request,
                                        const PlacementVerdict& verdict,
                                        size_t most) const override;
};

}  // namespace baton::scheduling
