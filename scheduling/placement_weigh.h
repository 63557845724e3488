// How each worker stood when a policy gave its verdict, for people who ask why.
// Pure.
#pragma once

#include <cstddef>
#include <vector>

#include "scheduling/placement.h"

namespace baton::scheduling {

// As PlacementPolicy::Weigh. `by_load`: a decode worker with less load than the
// chosen one can have lacked nothing but a prefill worker; else something other
// than load may have been against it.
std::vector<PlacementCandidate> WeighCandidates(const ClusterSnapshot& cluster,
                                                const PlacementRequest& request,
                                                const PlacementVerdict& verdict,
                                                size_t most, bool by_load);

}  // namespace baton::scheduling
