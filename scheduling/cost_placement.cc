#include "scheduling/cost_placement.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <tuple>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/time/time.h"
#include "scheduling/placement_room.h"
#include "scheduling/placement_weigh.h"

namespace baton::scheduling {
namespace {

constexpr size_t kPairs = CostModelPlacement::kPairs;
constexpr size_t kCached = CostModelPlacement::kCached;

// What comes first: what misses less, then what costs less, then whose turn it
// is.
using Rank = std::tuple<double, double, size_t>;

template <typename Part>
struct Ranked {
  Rank rank;
  size_t place = 0;  // in the snapshot
  CostedWorker at;
  Part part;
};

// The first few by rank of all that are offered.
template <typename Part, size_t kMost>
class Shortlist final {
 public:
  using Entry = Ranked<Part>;
  using Entries = absl::InlinedVector<Entry, kPairs + kCached + 1>;

  // Whether it will be among them; else it is only counted.
  bool Admits(const Rank& rank) {
    ++offered_;
    return entries_.size() < kMost || rank < entries_.back().rank;
  }

  // REQUIRES: admitted just now.
  void Insert(const Entry& entry) {
    if (entries_.size() == kMost) entries_.pop_back();
    entries_.insert(std::upper_bound(entries_.begin(), entries_.end(), entry,
                                     [](const Entry& a, const Entry& b) {
                                       return a.rank < b.rank;
                                     }),
                    entry);
  }

  bool left_out() const { return offered_ > entries_.size(); }
  const Entries& entries() const { return entries_; }

 private:
  size_t offered_ = 0;
  Entries entries_;
};

// A placement that is possible.
struct Option {
  const WorkerSnapshot* prefill = nullptr;  // null: local
  const WorkerSnapshot* decode = nullptr;
  int32_t cached = 0;
  double ttft_seconds = 0;
  double tpot_seconds = 0;
};

class Search final {
 public:
  Search(const ClusterSnapshot& cluster, const PlacementRequest& request)
      : cluster_(cluster),
        request_(request),
        cached_(request),
        first_(cluster.workers.empty()
                   ? 0
                   : cluster.round % cluster.workers.size()) {}

  // Whether what steps cost is known. After Best.
  bool known() const { return decode_cost_.known(); }

  // The best placement; of equal ones, the one whose turn it is. None when
  // there is none, or nothing is known of what steps cost.
  const Option* Best() {
    if (!FindMeans()) return nullptr;
    ListPrefill();
    ListDecode();
    OfferPairs();
    if (best_.empty()) return nullptr;
    // In the window of a large cluster the turns are not the options' own.
    const bool window = prefill_.left_out() || decode_.left_out();
    const uint64_t turn =
        window ? (cluster_.round * 0x9E3779B97F4A7C15) >> 32 : cluster_.round;
    return &best_[turn % best_.size()];
  }

 private:
  using Prefill = Ranked<PrefillPart>;
  using Decode = Ranked<DecodePart>;

  bool FindMeans() {
    StepCostMean prefill;
    StepCostMean decode;
    for (const WorkerSnapshot& worker : cluster_.workers) {
      (worker.role == WorkerRole::kPrefill ? prefill : decode)
          .Add(worker.step_cost);
    }
    prefill_cost_ = prefill.Get();
    decode_cost_ = decode.Get();
    if (!prefill_cost_.known()) prefill_cost_ = decode_cost_;
    if (!decode_cost_.known()) decode_cost_ = prefill_cost_;
    return decode_cost_.known();
  }

  CostedWorker Costed(const WorkerSnapshot& worker,
                      const StepCost& mean) const {
    CostedWorker costed;
    costed.worker = &worker;
    costed.cost = worker.step_cost.known() ? worker.step_cost : mean;
    costed.cached = cached_.Tokens(worker.id);
    if (worker.queued_tokens > 0) {
      // Quicker than ToDoubleSeconds, for each worker of a large cluster.
      costed.report_age_seconds =
          1e-9 *
          static_cast<double>(std::max<int64_t>(
              0, absl::ToInt64Nanoseconds(cluster_.now - worker.reported_at)));
    }
    return costed;
  }

  // Of equal workers others come first in each round.
  size_t Turn(size_t place) const {
    return place >= first_ ? place - first_
                           : place + cluster_.workers.size() - first_;
  }

  // Now, or when it has less to do.
  bool CouldPrefill(const WorkerSnapshot& worker) const {
    return worker.role == WorkerRole::kPrefill && MayServe(worker, request_) &&
           !worker.paired_with.empty() &&
           CouldEverHold(worker, request_.prefill_tokens) &&
           !Contains(request_.excluded, worker.id);
  }

  bool MayPrefill(const WorkerSnapshot& worker) const {
    return CouldPrefill(worker) && PrefillHasRoom(worker, request_);
  }

  bool MayDecode(const WorkerSnapshot& worker) const {
    return worker.role == WorkerRole::kDecode && MayServe(worker, request_) &&
           CouldEverHold(worker, request_.total_tokens) &&
           DecodeHasRoom(worker, request_) &&
           !Contains(request_.excluded, worker.id);
  }

  Rank RankOf(const PrefillPart& part, size_t place) const {
    return {part.miss, part.ttft_seconds, Turn(place)};
  }

  Rank RankOf(const DecodePart& part, size_t place) const {
    return {
        LeastPairMiss(part, request_, earliest_),
        part.delay_seconds + part.wait_seconds + BesideSeconds(part, earliest_),
        Turn(place)};
  }

  Prefill PrefillAt(size_t place) const {
    const CostedWorker at = Costed(cluster_.workers[place], prefill_cost_);
    const PrefillPart part = PrefillPartOf(at, request_);
    return {RankOf(part, place), place, at, part};
  }

  Decode DecodeAt(size_t place) const {
    const CostedWorker at = Costed(cluster_.workers[place], decode_cost_);
    const DecodePart part = DecodePartOf(at, request_);
    return {RankOf(part, place), place, at, part};
  }

  void ListPrefill() {
    for (size_t i = 0; i < cluster_.workers.size(); ++i) {
      if (!CouldPrefill(cluster_.workers[i])) continue;
      any_prefill_ = true;
      least_queued_ =
          std::min(least_queued_, QueuedTokens(cluster_.workers[i]));
      if (!PrefillHasRoom(cluster_.workers[i], request_)) continue;
      const CostedWorker at = Costed(cluster_.workers[i], prefill_cost_);
      const PrefillPart part = PrefillPartOf(at, request_);
      earliest_ = std::min(earliest_, part.ttft_seconds);
      const Rank rank = RankOf(part, i);
      if (prefill_.Admits(rank)) prefill_.Insert({rank, i, at, part});
    }
  }

  // And tries each decode worker by itself.
  void ListDecode() {
    for (size_t i = 0; i < cluster_.workers.size(); ++i) {
      if (!MayDecode(cluster_.workers[i])) continue;
      const CostedWorker at = Costed(cluster_.workers[i], decode_cost_);
      const DecodePart part = DecodePartOf(at, request_);
      if (cluster_.allow_local_prefill &&
          MayComputeThere(*at.worker, request_) &&
          (!request_.stands_by ||
           part.queue_seconds <= request_.little_seconds)) {
        TryLocal(at, part);
      }
      if (prefill_.entries().empty()) continue;
      const Rank rank = RankOf(part, i);
      if (decode_.Admits(rank)) decode_.Insert({rank, i, at, part});
      if (at.cached == 0) continue;
      const Rank longest = {-at.cached, std::get<1>(rank), Turn(i)};
      if (longest_.Admits(longest)) longest_.Insert({longest, i, at, part});
    }
  }

  void TryLocal(const CostedWorker& at, const DecodePart& part) {
    if (!best_.empty() &&
        best_rank_ <
            std::pair(part.miss, LeastLocalDelay(at, part, request_))) {
      return;
    }
    if (any_prefill_ &&
        (!KeepsBatchBoundBesidePrompt(*at.worker, request_) ||
         TakesFromPrefill(*at.worker, request_, least_queued_))) {
      return;
    }
    Offer(LocalEstimate(at, part, request_), {nullptr, at.worker, at.cached});
  }

  void OfferPairs() {
    // All are listed that have room, so there is no pair to look for.
    if (prefill_.entries().empty() || decode_.entries().empty()) return;
    // In the operator's order, so that turns among few workers are strict.
    std::vector<Prefill> prefill(prefill_.entries().begin(),
                                 prefill_.entries().end());
    std::vector<Decode> decode(decode_.entries().begin(),
                               decode_.entries().end());
    decode.insert(decode.end(), longest_.entries().begin(),
                  longest_.entries().end());
    const auto by_place = [](const auto& a, const auto& b) {
      return a.place < b.place;
    };
    std::sort(prefill.begin(), prefill.end(), by_place);
    std::sort(decode.begin(), decode.end(), by_place);
    decode.erase(std::unique(decode.begin(), decode.end(),
                             [](const Decode& a, const Decode& b) {
                               return a.place == b.place;
                             }),
                 decode.end());
    std::vector<bool> prefill_paired(prefill.size());
    std::vector<bool> decode_paired(decode.size());
    for (size_t p = 0; p < prefill.size(); ++p) {
      for (size_t d = 0; d < decode.size(); ++d) {
        if (!TryPair(prefill[p], decode[d])) continue;
        prefill_paired[p] = true;
        decode_paired[d] = true;
      }
    }
    // Where not all are paired with all, the best may not be with the best.
    bool any = false;
    for (size_t p = 0; p < prefill.size(); ++p) {
      any = prefill_paired[p] || TryAllDecode(prefill[p]) || any;
    }
    for (size_t d = 0; d < decode.size(); ++d) {
      any = decode_paired[d] || TryAllPrefill(decode[d]) || any;
    }
    if (any || !prefill_.left_out()) return;
    for (size_t i = 0; i < cluster_.workers.size(); ++i) {
      if (MayPrefill(cluster_.workers[i])) TryAllDecode(PrefillAt(i));
    }
  }

  bool TryAllDecode(const Prefill& prefill) {
    bool any = false;
    for (size_t i = 0; i < cluster_.workers.size(); ++i) {
      const WorkerSnapshot& worker = cluster_.workers[i];
      if (worker.role != WorkerRole::kDecode ||
          !LinkFinder(worker.id).Find(*prefill.at.worker) ||
          !MayDecode(worker)) {
        continue;
      }
      any = TryPair(prefill, DecodeAt(i)) || any;
    }
    return any;
  }

  bool TryAllPrefill(const Decode& decode) {
    bool any = false;
    LinkFinder link(decode.at.worker->id);
    for (size_t i = 0; i < cluster_.workers.size(); ++i) {
      const WorkerSnapshot& worker = cluster_.workers[i];
      if (!link.Find(worker) || !MayPrefill(worker)) continue;
      any = TryPair(PrefillAt(i), decode) || any;
    }
    return any;
  }

  // False when they are not paired.
  bool TryPair(const Prefill& prefill, const Decode& decode) {
    LinkFinder link(decode.at.worker->id);
    if (!link.Find(*prefill.at.worker)) return false;
    Offer(PairEstimate(prefill.at, prefill.part, decode.at, decode.part,
                       link.bandwidth(), request_),
          {prefill.at.worker, decode.at.worker, prefill.at.cached});
    return true;
  }

  void Offer(const DelayEstimate& estimate, Option option) {
    const std::pair rank(estimate.miss, estimate.delay_seconds);
    if (!best_.empty() && best_rank_ < rank) return;
    if (!best_.empty() && rank < best_rank_) best_.clear();
    best_rank_ = rank;
    option.ttft_seconds = estimate.ttft_seconds;
    option.tpot_seconds = estimate.tpot_seconds;
    best_.push_back(option);
  }

  const ClusterSnapshot& cluster_;
  const PlacementRequest& request_;
  const CachedPrompts cached_;
  const size_t first_;
  StepCost prefill_cost_;
  StepCost decode_cost_;
  // There are prefill workers for the prompt, be it that they are full.
  bool any_prefill_ = false;
  // Prompt tokens on the one of them with the least.
  int64_t least_queued_ = std::numeric_limits<int64_t>::max();
  // When the first token can come at the earliest from a prefill worker.
  double earliest_ = std::numeric_limits<double>::infinity();
  Shortlist<PrefillPart, kPairs> prefill_;
  Shortlist<DecodePart, kPairs> decode_;
  Shortlist<DecodePart, kCached> longest_;
  std::pair<double, double> best_rank_;
  std::vector<Option> best_;
};

}  // namespace

PlacementVerdict CostModelPlacement::Place(
    const ClusterSnapshot& cluster, const PlacementRequest& request) const {
  Search search(cluster, request);
  const Option* best = search.Best();
  PlacementVerdict verdict;
  if (best == nullptr) {
    verdict = least_load_.Place(cluster, request);
    // It does not know how long a queue takes beside streams.
    if (request.stands_by && search.known() &&
        verdict.kind == PlacementVerdict::Kind::kDecodeOnly) {
      return {.reason = PlacementReason::kDecodeFull};
    }
    return verdict;
  }
  verdict.kind = best->prefill == nullptr
                     ? PlacementVerdict::Kind::kDecodeOnly
                     : PlacementVerdict::Kind::kPrefillAndDecode;
  verdict.reason = PlacementReason::kLeastDelay;
  if (best->prefill != nullptr) verdict.prefill = best->prefill->id;
  verdict.decode = best->decode->id;
  verdict.cached_tokens = best->cached;
  verdict.predicted_ttft_seconds = best->ttft_seconds;
  verdict.predicted_tpot_seconds = best->tpot_seconds;
  return verdict;
}

std::vector<PlacementCandidate> CostModelPlacement::Weigh(
    const ClusterSnapshot& cluster, const PlacementRequest& request,
    const PlacementVerdict& verdict, size_t most) const {
  if (verdict.reason != PlacementReason::kLeastDelay) {
    return least_load_.Weigh(cluster, request, verdict, most);
  }
  std::vector<PlacementCandidate> candidates =
      WeighCandidates(cluster, request, verdict, most, /*by_load=*/false);
  // A prompt that stays on the decode worker passes all prefill workers over.
  for (PlacementCandidate& candidate : candidates) {
    if (verdict.prefill == kNoWorker &&
        candidate.standing == PlacementCandidate::Standing::kNotPaired) {
      candidate.standing = PlacementCandidate::Standing::kPassedOver;
    }
  }
  return candidates;
}

}  // namespace baton::scheduling
