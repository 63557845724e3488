#include "scheduling/placement_weigh.h"

#include <algorithm>
#include <optional>
#include <tuple>

#include "scheduling/placement_room.h"

namespace baton::scheduling {
namespace {

using Standing = PlacementCandidate::Standing;

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

// What is compared of a worker, and how it stood.
struct Weight {
  Standing standing = Standing::kUnusable;
  double load = 0;
  const WorkerSnapshot* worker = nullptr;
};

class Scales final {
 public:
  Scales(const ClusterSnapshot& cluster, const PlacementRequest& request,
         const PlacementVerdict& verdict, bool by_load)
      : request_(request),
        by_load_(by_load),
        chosen_(FindChosen(cluster, verdict)) {
    if (chosen_.decode != nullptr) link_.emplace(chosen_.decode->id);
  }

  Weight Weigh(const WorkerSnapshot& worker) {
    Weight weight;
    weight.worker = &worker;
    if (!worker.usable) return weight;
    const bool decode = worker.role == WorkerRole::kDecode;
    weight.load =
        decode ? DecodeLoad(worker) : static_cast<double>(QueuedTokens(worker));
    const int32_t tokens =
        decode ? request_.total_tokens : request_.prefill_tokens;
    if (&worker == chosen_.decode || &worker == chosen_.prefill) {
      weight.standing = Standing::kChosen;
    } else if (!HasAdapter(worker, request_)) {
      weight.standing = Standing::kNoAdapter;
    } else if (!CouldEverHold(worker, tokens)) {
      weight.standing = Standing::kTooSmall;
    } else if (Contains(request_.excluded, worker.id)) {
      weight.standing = Standing::kExcluded;
    } else {
      weight.standing = decode ? DecodeStanding(worker, weight.load)
                               : PrefillStanding(worker);
    }
    return weight;
  }

 private:
  Standing DecodeStanding(const WorkerSnapshot& worker, double load) const {
    if (!DecodeHasRoom(worker, request_)) {
      return Standing::kNoRoom;
    }
    // Only its prefill workers can have stood in the way.
    const bool less =
        by_load_ && chosen_.decode != nullptr && load < chosen_.decode_load;
    return less ? Standing::kNotPaired : Standing::kPassedOver;
  }

  Standing PrefillStanding(const WorkerSnapshot& worker) {
    if (!link_.has_value() || !link_->Find(worker)) {
      return Standing::kNotPaired;
    }
    if (!PrefillHasRoom(worker, request_)) {
      return Standing::kNoRoom;
    }
    if (chosen_.prefill == nullptr) return Standing::kPassedOver;
    if (QueuedTokens(worker) != QueuedTokens(*chosen_.prefill)) {
      return Standing::kPassedOver;
    }
    const double bandwidth = link_->bandwidth();
    return bandwidth > 0 && bandwidth < chosen_.bandwidth / 2
               ? Standing::kSlowLink
               : Standing::kPassedOver;
  }

  const PlacementRequest& request_;
  const bool by_load_;
  const Chosen chosen_;
  std::optional<LinkFinder> link_;  // to the chosen decode worker
};

PlacementCandidate CandidateOf(const Weight& weight,
                               const CachedPrompts& cached) {
  const WorkerSnapshot& worker = *weight.worker;
  PlacementCandidate candidate;
  candidate.id = worker.id;
  candidate.role = worker.role;
  candidate.standing = weight.standing;
  if (!worker.usable) return candidate;
  candidate.load = weight.load;
  candidate.sequences = Sequences(worker);
  candidate.free_blocks = std::max(0, FreeBlocks(worker));
  candidate.total_blocks = worker.total_blocks;
  candidate.cached_tokens = cached.Tokens(worker.id);
  return candidate;
}

}  // namespace

std::vector<PlacementCandidate> WeighCandidates(const ClusterSnapshot& cluster,
                                                const PlacementRequest& request,
                                                const PlacementVerdict& verdict,
                                                size_t most, bool by_load) {
  Scales scales(cluster, request, verdict, by_load);
  std::vector<Weight> weights;
  weights.reserve(cluster.workers.size());
  for (const WorkerSnapshot& worker : cluster.workers) {
    weights.push_back(scales.Weigh(worker));
  }
  if (weights.size() > most) {
    std::nth_element(weights.begin(),
                     weights.begin() + static_cast<ptrdiff_t>(most),
                     weights.end(), [](const Weight& a, const Weight& b) {
                       return std::tie(a.standing, a.load, a.worker->id) <
                              std::tie(b.standing, b.load, b.worker->id);
                     });
    weights.resize(most);
  }
  const CachedPrompts cached(request);
  std::vector<PlacementCandidate> candidates;
  candidates.reserve(weights.size());
  for (const Weight& weight : weights) {
    candidates.push_back(CandidateOf(weight, cached));
  }
  return candidates;
}

}  // namespace baton::scheduling
