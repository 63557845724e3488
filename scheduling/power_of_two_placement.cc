#include "scheduling/power_of_two_placement.h"

#include "scheduling/placement_pick.h"
#include "scheduling/placement_room.h"
#include "scheduling/placement_weigh.h"

namespace baton::scheduling {
namespace {

class TwoChoices final : public WorkerPreference {
 public:
  PlacementReason reason() const override {
    return PlacementReason::kTwoChoices;
  }
  double DecodeCost(const WorkerSnapshot& decode, bool /*computes*/) override {
    return DecodeLoad(decode);
  }
  double PrefillCost(const WorkerSnapshot& prefill) override {
    return static_cast<double>(QueuedTokens(prefill));
  }
  int num_drawn() const override { return 2; }
};

}  // namespace

PlacementVerdict PowerOfTwoPlacement::Place(
    const ClusterSnapshot& cluster, const PlacementRequest& request) const {
  TwoChoices preference;
  return PlaceByPreference(cluster, request, &preference);
}

std::vector<PlacementCandidate> PowerOfTwoPlacement::Weigh(
    const ClusterSnapshot& cluster, const PlacementRequest& request,
    const PlacementVerdict& verdict, size_t most) const {
  return WeighCandidates(cluster, request, verdict, most, /*by_load=*/false);
}

}  // namespace baton::scheduling
