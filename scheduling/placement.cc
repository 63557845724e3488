#include "scheduling/placement.h"

#include <algorithm>
#include <utility>

#include "common/log.h"

namespace baton::scheduling {
namespace {

using Workers = std::vector<const WorkerSnapshot*>;

bool Contains(absl::Span<const WorkerId> ids, WorkerId id) {
  return std::find(ids.begin(), ids.end(), id) != ids.end();
}

int64_t QueuedTokens(const WorkerSnapshot& worker) {
  return std::max<int64_t>(0, worker.queued_tokens + worker.placed_tokens);
}

int32_t Sequences(const WorkerSnapshot& worker) {
  return std::max(0, worker.running + worker.waiting + worker.placed_sequences);
}

int32_t FreeBlocks(const WorkerSnapshot& worker) {
  return std::min(worker.total_blocks,
                  worker.free_blocks - worker.placed_blocks);
}

bool CouldEverHold(const WorkerSnapshot& worker, int32_t tokens) {
  return tokens <= worker.max_context &&
         BlocksFor(tokens, worker.block_size) <= worker.total_blocks;
}

bool DecodeHasRoom(const WorkerSnapshot& worker, int32_t tokens) {
  return Sequences(worker) < worker.max_sequences &&
         BlocksFor(tokens, worker.block_size) <= FreeBlocks(worker);
}

// An idle worker takes any prompt that it can hold, however long.
bool PrefillHasRoom(const WorkerSnapshot& worker, int32_t tokens) {
  const int64_t queued = QueuedTokens(worker);
  return worker.max_queued_tokens == 0 || queued == 0 ||
         queued + tokens <= worker.max_queued_tokens;
}

// In [0, 2]: share of the blocks plus share of the sequence places.
double DecodeLoad(const WorkerSnapshot& worker) {
  const double blocks =
      1.0 - static_cast<double>(FreeBlocks(worker)) / worker.total_blocks;
  return blocks + static_cast<double>(Sequences(worker)) / worker.max_sequences;
}

// The least of `workers` by `load`; among equals, the one whose turn it is.
// REQUIRES: workers is not empty.
template <typename Load>
const WorkerSnapshot& Least(const Workers& workers, uint64_t round, Load load) {
  Workers least;
  for (const WorkerSnapshot* worker : workers) {
    if (!least.empty() && load(*worker) > load(*least.front())) continue;
    if (!least.empty() && load(*worker) < load(*least.front())) least.clear();
    least.push_back(worker);
  }
  CHECK(!least.empty());
  return *least[round % least.size()];
}

// The prefill workers that may serve `decode`.
Workers PairedPrefill(const ClusterSnapshot& cluster,
                      const PlacementRequest& request, WorkerId decode) {
  Workers paired;
  for (const WorkerSnapshot& worker : cluster.workers) {
    if (worker.role == WorkerRole::kPrefill && worker.usable &&
        Contains(worker.paired_with, decode) &&
        !Contains(request.excluded, worker.id) &&
        CouldEverHold(worker, request.prefill_tokens)) {
      paired.push_back(&worker);
    }
  }
  return paired;
}

// Of the link from `prefill` to `decode`, in bytes per second; 0: not measured.
double Bandwidth(const WorkerSnapshot& prefill, WorkerId decode) {
  for (size_t i = 0; i < prefill.link_bandwidth.size(); ++i) {
    if (prefill.paired_with[i] == decode) return prefill.link_bandwidth[i];
  }
  return 0;
}

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

}  // namespace baton::scheduling
