// Placement by predicted delay: a request goes where it, and those that run
// there already, lose the least time by it. So it is decided for each request
// whether its prompt is computed on the decode worker itself (conditional
// disaggregation) or on a prefill worker, whose cache has to travel then.
//
// For a decode worker D that runs n sequences, and m tokens of output:
//
//   local    ttft  = queue_D + prefill_D, in chunks beside the decode steps
//            others += n * what the chunks add to those steps
//   P and D  ttft  = queue_P + prefill_P
//            gap   = what of the transfer prefill does not hide
//   both     own   = m * step_D(n + 1)
//            others += n * m * (step_D(n + 1) - step_D(n))
//
//   delay = ttft + gap + own + others
//
// (ARCHITECTURE section 5; seconds by the workers' own StepCost.) Placements
// that are predicted to meet the request's targets come before others, whatever
// their delay; among those that miss, the one that misses least.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "scheduling/placement.h"

namespace baton::scheduling {

// What a placement is predicted to bring.
struct DelayEstimate {
  double ttft_seconds = 0;
  // Between tokens, once it runs.
  double itl_seconds = 0;
  // To all clients together, as above.
  double delay_seconds = 0;
  // By how much the targets are missed, each relative to itself; 0: met.
  double miss = 0;
};

// Of the prompt on `decode` itself.
DelayEstimate EstimateLocal(const WorkerSnapshot& decode,
                            const PlacementRequest& request);
// Of the prompt on `prefill`, over a link of `bandwidth` bytes per second (0:
// not measured, taken as free).
DelayEstimate EstimatePair(const WorkerSnapshot& prefill,
                           const WorkerSnapshot& decode, double bandwidth,
                           const PlacementRequest& request);

// Falls back to LeastLoadPlacement while no worker knows its costs, and for
// what it would refuse; a worker that does not know its own yet is taken for an
// average one of its role.
class CostModelPlacement final : public PlacementPolicy {
 public:
  PlacementVerdict Place(const ClusterSnapshot& cluster,
                         const PlacementRequest& request) const override;
  std::vector<PlacementCandidate> Weigh(const ClusterSnapshot& cluster,
                                        const PlacementRequest& request,
                                        const PlacementVerdict& verdict,
                                        size_t most) const override;

 private:
  const LeastLoadPlacement least_load_;
};

}  // namespace baton::scheduling
