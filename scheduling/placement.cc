#include "scheduling/placement.h"

#include <algorithm>
#include <cstddef>

#include "absl/types/span.h"
#include "common/log.h"
#include "common/stable_hash.h"
#include "scheduling/placement_pick.h"
#include "scheduling/placement_room.h"
#include "scheduling/placement_weigh.h"

namespace baton::scheduling {
namespace {

using Standing = PlacementCandidate::Standing;

class Load final : public WorkerPreference {
 public:
  PlacementReason reason() const override {
    return PlacementReason::kLeastLoad;
  }
  double DecodeCost(const WorkerSnapshot& decode, bool /*computes*/) override {
    return DecodeLoad(decode);
  }
  double PrefillCost(const WorkerSnapshot& prefill) override {
    return static_cast<double>(QueuedTokens(prefill));
  }
};

}  // namespace

const char* WorkerRoleName(WorkerRole role) {
  switch (role) {
    case WorkerRole::kPrefill:
      return "prefill";
    case WorkerRole::kDecode:
      return "decode";
  }
  LOG(FATAL) << "WorkerRole " << static_cast<int>(role);
}

const char* PlacementReasonName(PlacementReason reason) {
  switch (reason) {
    case PlacementReason::kLeastLoad:
      return "least_load";
    case PlacementReason::kTwoChoices:
      return "two_choices";
    case PlacementReason::kPrefixAndLoad:
      return "prefix_and_load";
    case PlacementReason::kLeastDelay:
      return "least_delay";
    case PlacementReason::kNoPrefillWorker:
      return "no_prefill_worker";
    case PlacementReason::kNoDecodeWorker:
      return "no_decode_worker";
    case PlacementReason::kPairingPending:
      return "pairing_pending";
    case PlacementReason::kOnlyExcluded:
      return "only_excluded";
    case PlacementReason::kDecodeFull:
      return "decode_full";
    case PlacementReason::kPrefillFull:
      return "prefill_full";
    case PlacementReason::kTooLarge:
      return "too_large";
    case PlacementReason::kNoAdapter:
      return "no_adapter";
  }
  LOG(FATAL) << "PlacementReason " << static_cast<int>(reason);
}

const char* PlacementKindName(PlacementVerdict::Kind kind) {
  switch (kind) {
    case PlacementVerdict::Kind::kPrefillAndDecode:
      return "prefill-decode";
    case PlacementVerdict::Kind::kDecodeOnly:
      return "decode-only";
    case PlacementVerdict::Kind::kNone:
      return "none";
  }
  LOG(FATAL) << "Kind " << static_cast<int>(kind);
}

const char* StandingName(PlacementCandidate::Standing standing) {
  switch (standing) {
    case Standing::kChosen:
      return "chosen";
    case Standing::kPassedOver:
      return "passed_over";
    case Standing::kSlowLink:
      return "slow_link";
    case Standing::kNoRoom:
      return "no_room";
    case Standing::kNotPaired:
      return "not_paired";
    case Standing::kExcluded:
      return "excluded";
    case Standing::kTooSmall:
      return "too_small";
    case Standing::kNoAdapter:
      return "no_adapter";
    case Standing::kUnusable:
      return "unusable";
  }
  LOG(FATAL) << "Standing " << static_cast<int>(standing);
}

uint64_t AdapterKey(absl::string_view identity) {
  if (identity.empty()) return 0;
  const Hash128 hash = StableHash(absl::MakeConstSpan(
      reinterpret_cast<const std::byte*>(identity.data()), identity.size()));
  return std::max<uint64_t>(1, hash.low);
}

int32_t BlocksFor(int32_t tokens, int32_t block_size) {
  CHECK_GE(block_size, 1);
  CHECK_GE(tokens, 0);
  return tokens / block_size + (tokens % block_size != 0 ? 1 : 0);
}

PlacementVerdict LeastLoadPlacement::Place(
    const ClusterSnapshot& cluster, const PlacementRequest& request) const {
  Load preference;
  return PlaceByPreference(cluster, request, &preference);
}

std::vector<PlacementCandidate> LeastLoadPlacement::Weigh(
    const ClusterSnapshot& cluster, const PlacementRequest& request,
    const PlacementVerdict& verdict, size_t most) const {
  return WeighCandidates(cluster, request, verdict, most, /*by_load=*/true);
}

}  // namespace baton::scheduling
