// How a decode worker and then a prefill worker are picked, by any policy that
// compares them by a number each (least-load, power-of-two, prefix-affine):
//
//   decode   of those that have room and are paired with a prefill worker that
//            has room, one with the least cost
//   prefill  of those that are paired with it and have room, one with the least
//            cost; of several, one whose link is not much slower than the
//            fastest
//   local    when no prefill worker is paired with any of them, the decode
//            worker prefills by itself
//
// Equal ones take turns. Excluded decode workers come last, if at all. What
// stood in the way of a request is the same for all policies, too. Pure.
#pragma once

#include "scheduling/placement.h"

namespace baton::scheduling {

// What a policy prefers, of one request.
class WorkerPreference {
 public:
  virtual ~WorkerPreference() = default;

  // Of a verdict with both workers.
  virtual PlacementReason reason() const = 0;
  // What is compared; less is better. `computes`: it is to prefill, too.
  virtual double DecodeCost(const WorkerSnapshot& decode, bool computes) = 0;
  virtual double PrefillCost(const WorkerSnapshot& prefill) = 0;
  // How many are compared, drawn by chance from all that could do it; 0: all.
  virtual int num_drawn() const { return 0; }
};

PlacementVerdict PlaceByPreference(const ClusterSnapshot& cluster,
                                   const PlacementRequest& request,
                                   WorkerPreference* preference);

}  // namespace baton::scheduling
