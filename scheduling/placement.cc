#include "scheduling/placement.h"

#include <algorithm>
#include <cstddef>
#include <tuple>
#include <utility>

#include "common/log.h"
#include "scheduling/placement_room.h"

namespace baton::scheduling {
namespace {

using Standing = PlacementCandidate::Standing;

// The one to compute the prompt. REQUIRES: `paired` is not empty.
const WorkerSnapshot& PickPrefill(const Workers& paired, WorkerId decode,
                                  uint64_t round) {
  double fastest = 0;
  for (const WorkerSnapshot* prefill : paired) {
    fastest = std::max(fastest, Bandwidth(*prefill, decode));
  }
  return Least(paired, round, [&](const WorkerSnapshot& prefill) {
    const double bandwidth = Bandwidth(prefill, decode);
    const bool slow = bandwidth > 0 && bandwidth < fastest / 2;
    return std::make_pair(QueuedTokens(prefill), slow);
  });
}

// Whom a verdict took; null: nobody.
struct Chosen {
  const WorkerSnapshot* prefill = nullptr;
  const WorkerSnapshot* decode = nullptr;
  // Of `decode`.
  double decode_load = 0;
  // From `prefill` to `decode`.
  double bandwidth = 0;
};

Chosen FindChosen(const ClusterSnapshot& cluster,
                  const PlacementVerdict& verdict) {
  Chosen chosen;
  for (const WorkerSnapshot& worker : cluster.workers) {
    if (worker.id == verdict.prefill) chosen.prefill = &worker;
    if (worker.id == verdict.decode) chosen.decode = &worker;
  }
  if (chosen.decode != nullptr) {
    chosen.decode_load = DecodeLoad(*chosen.decode);
    if (chosen.prefill != nullptr) {
      chosen.bandwidth = Bandwidth(*chosen.prefill, chosen.decode->id);
    }
  }
  return chosen;
}

Standing DecodeStanding(const WorkerSnapshot& worker, double load,
                        int32_t tokens, const Chosen& chosen) {
  if (!DecodeHasRoom(worker, tokens)) return Standing::kNoRoom;
  // Only its prefill workers can have stood in the way.
  const bool less = chosen.decode != nullptr && load < chosen.decode_load;
  return less ? Standing::kNotPaired : Standing::kPassedOver;
}

Standing PrefillStanding(const WorkerSnapshot& worker, int32_t tokens,
                         const Chosen& chosen) {
  if (chosen.decode == nullptr ||
      !Contains(worker.paired_with, chosen.decode->id)) {
    return Standing::kNotPaired;
  }
  if (!PrefillHasRoom(worker, tokens)) return Standing::kNoRoom;
  if (chosen.prefill == nullptr) return Standing::kPassedOver;
  if (QueuedTokens(worker) != QueuedTokens(*chosen.prefill)) {
    return Standing::kPassedOver;
  }
  const double bandwidth = Bandwidth(worker, chosen.decode->id);
  return bandwidth > 0 && bandwidth < chosen.bandwidth / 2
             ? Standing::kSlowLink
             : Standing::kPassedOver;
}

PlacementCandidate Candidate(const WorkerSnapshot& worker,
                             const PlacementRequest& request,
                             const Chosen& chosen) {
  const bool decode = worker.role == WorkerRole::kDecode;
  PlacementCandidate candidate;
  candidate.id = worker.id;
  candidate.role = worker.role;
  if (!worker.usable) return candidate;
  candidate.load =
      decode ? DecodeLoad(worker) : static_cast<double>(QueuedTokens(worker));
  candidate.sequences = Sequences(worker);
  candidate.free_blocks = std::max(0, FreeBlocks(worker));
  candidate.total_blocks = worker.total_blocks;
  const int32_t tokens = decode ? request.total_tokens : request.prefill_tokens;
  if (&worker == chosen.decode || &worker == chosen.prefill) {
    candidate.standing = Standing::kChosen;
  } else if (!CouldEverHold(worker, tokens)) {
    candidate.standing = Standing::kTooSmall;
  } else if (Contains(request.excluded, worker.id)) {
    candidate.standing = Standing::kExcluded;
  } else {
    candidate.standing =
        decode ? DecodeStanding(worker, candidate.load, tokens, chosen)
               : PrefillStanding(worker, tokens, chosen);
  }
  return candidate;
}

PlacementVerdict None(PlacementReason reason) {
  return {.kind = PlacementVerdict::Kind::kNone, .reason = reason};
}

PlacementVerdict PlaceDecodeOnly(const ClusterSnapshot& cluster,
                                 const Workers& with_room) {
  if (!cluster.allow_local_prefill) {
    return None(PlacementReason::kPairingPending);
  }
  if (with_room.empty()) return None(PlacementReason::kDecodeFull);
  return {.kind = PlacementVerdict::Kind::kDecodeOnly,
          .reason = PlacementReason::kNoPrefillWorker,
          .decode = Least(with_room, cluster.round, DecodeLoad).id};
}

// Places on one of `decoders`, each of which could hold the request when idle.
PlacementVerdict PlaceAmong(const ClusterSnapshot& cluster,
                            const PlacementRequest& request,
                            const Workers& decoders) {
  bool any_pair = false;
  Workers with_room;
  Workers candidates;
  for (const WorkerSnapshot* decode : decoders) {
    const Workers paired = PairedPrefill(cluster, request, decode->id);
    any_pair = any_pair || !paired.empty();
    if (!DecodeHasRoom(*decode, request.total_tokens)) continue;
    with_room.push_back(decode);
    if (std::any_of(paired.begin(), paired.end(), [&](const auto* prefill) {
          return PrefillHasRoom(*prefill, request.prefill_tokens);
        })) {
      candidates.push_back(decode);
    }
  }
  if (!any_pair) return PlaceDecodeOnly(cluster, with_room);
  if (with_room.empty()) return None(PlacementReason::kDecodeFull);
  if (candidates.empty()) return None(PlacementReason::kPrefillFull);

  const WorkerSnapshot& decode = Least(candidates, cluster.round, DecodeLoad);
  Workers paired = PairedPrefill(cluster, request, decode.id);
  std::erase_if(paired, [&](const auto* prefill) {
    return !PrefillHasRoom(*prefill, request.prefill_tokens);
  });
  return {.kind = PlacementVerdict::Kind::kPrefillAndDecode,
          .reason = PlacementReason::kLeastLoad,
          .prefill = PickPrefill(paired, decode.id, cluster.round).id,
          .decode = decode.id};
}

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
    case Standing::kUnusable:
      return "unusable";
  }
  LOG(FATAL) << "Standing " << static_cast<int>(standing);
}

int32_t BlocksFor(int32_t tokens, int32_t block_size) {
  CHECK_GE(block_size, 1);
  CHECK_GE(tokens, 0);
  return tokens / block_size + (tokens % block_size != 0 ? 1 : 0);
}

PlacementVerdict LeastLoadPlacement::Place(
    const ClusterSnapshot& cluster, const PlacementRequest& request) const {
  bool any_decode = false;
  Workers all;
  Workers fresh;
  for (const WorkerSnapshot& worker : cluster.workers) {
    if (worker.role != WorkerRole::kDecode || !worker.usable) continue;
    any_decode = true;
    if (!CouldEverHold(worker, request.total_tokens)) continue;
    all.push_back(&worker);
    if (!Contains(request.excluded, worker.id)) fresh.push_back(&worker);
  }
  if (!any_decode) return None(PlacementReason::kNoDecodeWorker);
  if (all.empty()) return None(PlacementReason::kTooLarge);

  PlacementVerdict verdict = fresh.empty()
                                 ? None(PlacementReason::kOnlyExcluded)
                                 : PlaceAmong(cluster, request, fresh);
  if (verdict.kind == PlacementVerdict::Kind::kNone &&
      request.allow_excluded_decode && fresh.size() < all.size()) {
    verdict = PlaceAmong(cluster, request, all);
  }
  return verdict;
}

std::vector<PlacementCandidate> LeastLoadPlacement::Weigh(
    const ClusterSnapshot& cluster, const PlacementRequest& request,
    const PlacementVerdict& verdict, size_t most) const {
  const Chosen chosen = FindChosen(cluster, verdict);
  std::vector<PlacementCandidate> candidates;
  candidates.reserve(cluster.workers.size());
  for (const WorkerSnapshot& worker : cluster.workers) {
    candidates.push_back(Candidate(worker, request, chosen));
  }
  if (candidates.size() <= most) return candidates;
  std::nth_element(candidates.begin(),
                   candidates.begin() + static_cast<ptrdiff_t>(most),
                   candidates.end(), [](const auto& a, const auto& b) {
                     return std::tie(a.standing, a.load, a.id) <
                            std::tie(b.standing, b.load, b.id);
                   });
  candidates.resize(most);
  candidates.shrink_to_fit();
  return candidates;
}

}  // namespace baton::scheduling
