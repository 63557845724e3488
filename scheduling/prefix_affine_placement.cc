#include "scheduling/prefix_affine_placement.h"

#include <algorithm>
#include <cstdint>

#include "scheduling/placement_pick.h"
#include "scheduling/placement_room.h"
#include "scheduling/placement_weigh.h"

namespace baton::scheduling {
namespace {

// What computing a token costs of what waiting for one does: it takes time from
// all that come later, too, and on two workers it takes the room of another one
// in their caches.
constexpr double kComputed = 2;
// And what receiving a token costs.
constexpr double kReceived = 1.0 / 16;
// Makes load the second thing that is compared, where costs are equal.
constexpr double kTie = 1e-9;

class PrefixAndLoad final : public WorkerPreference {
 public:
  explicit PrefixAndLoad(const PlacementRequest& request)
      : prompt_(request.prefill_tokens), cached_(request) {}

  PlacementReason reason() const override {
    return PlacementReason::kPrefixAndLoad;
  }

  double DecodeCost(const WorkerSnapshot& decode, bool computes) override {
    const double lacks = Lacks(decode);
    const auto queued = static_cast<double>(QueuedTokens(decode));
    const double scale = std::max({prompt_, decode.token_budget, 1});
    return ((computes ? kComputed : kReceived) * lacks + queued) / scale +
           DecodeLoad(decode);
  }

  double PrefillCost(const WorkerSnapshot& prefill) override {
    const auto queued = static_cast<double>(QueuedTokens(prefill));
    return kComputed * Lacks(prefill) + queued + kTie * queued;
  }

 private:
  double Lacks(const WorkerSnapshot& worker) const {
    return prompt_ - cached_.Tokens(worker.id);
  }

  const int32_t prompt_;
  const CachedPrompts cached_;
};

}  // namespace

PlacementVerdict PrefixAffinePlacement::Place(
    const ClusterSnapshot& cluster, const PlacementRequest& request) const {
  PrefixAndLoad preference(request);
  return PlaceByPreference(cluster, request, &preference);
}

std::vector<PlacementCandidate> PrefixAffinePlacement::Weigh(
    const ClusterSnapshot& cluster, const PlacementRequest& request,
    const PlacementVerdict& verdict, size_t most) const {
  return WeighCandidates(cluster, request, verdict, most, /*by_load=*/false);
}

}  // namespace baton::scheduling
