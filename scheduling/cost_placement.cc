#include "scheduling/cost_placement.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include <map>
#include "scheduling/placement_room.h"

namespace baton::scheduling {
namespace {

// Of an answer that may become longer: what comes later is not known well
// enough to be paid for now.
constexpr int32_t kMostExpectedOutput = 256;

// A decode step of `sequences`, each with the worker's average context.
double DecodeStep(const WorkerSnapshot& worker, int64_t sequences,
                  int64_t context) {
  return worker.step_cost.Seconds({sequences, context, sequences});
}

// What decoding brings wherever the prompt was computed: to the request's own
// tokens, and to those of others.
void AddDecode(const WorkerSnapshot& decode, const PlacementRequest& request,
               DelayEstimate* estimate) {
  const int64_t running = Sequences(decode);
  const int64_t context = decode.context_tokens;
  const double without = DecodeStep(decode, running, context);
  const double with =
      DecodeStep(decode, running + 1, context + request.prefill_tokens);
  const double output = std::clamp(
      request.total_tokens - request.prefill_tokens, 1, kMostExpectedOutput);
  const double added =
      running > 0 ? static_cast<double>(running) * (with - without) : 0;
  estimate->itl_seconds = with;
  estimate->delay_seconds += output * (with + added);
}

void Judge(const PlacementRequest& request, DelayEstimate* estimate) {
  const auto miss = [](double seconds, double target) {
    return target > 0 ? std::max(0.0, seconds / target - 1) : 0;
  };
  estimate->miss = miss(estimate->ttft_seconds, request.ttft_target_seconds) +
                   miss(estimate->itl_seconds, request.itl_target_seconds);
}

// Costs for workers that do not know theirs: the mean of those that do.
StepCost MeanCost(const ClusterSnapshot& cluster, WorkerRole role) {
  StepCost sum;
  double count = 0;
  for (const WorkerSnapshot& worker : cluster.workers) {
    if (worker.role != role || !worker.step_cost.known()) continue;
    sum.fixed += worker.step_cost.fixed;
    sum.per_token += worker.step_cost.per_token;
    sum.per_context_token += worker.step_cost.per_context_token;
    sum.per_sequence += worker.step_cost.per_sequence;
    ++count;
  }
  if (count == 0) return sum;
  return {sum.fixed / count, sum.per_token / count,
          sum.per_context_token / count, sum.per_sequence / count};
}

// A placement that is possible.
struct Option {
  const WorkerSnapshot* prefill = nullptr;  // null: local
  const WorkerSnapshot* decode = nullptr;
  DelayEstimate estimate;

  std::pair<double, double> Rank() const {
    return {estimate.miss, estimate.delay_seconds};
  }
};

class Search final {
 public:
  Search(const ClusterSnapshot& cluster, const PlacementRequest& request)
      : cluster_(cluster), request_(request) {}

  // The best placements; several when they are equal. Empty when there is none,
  // or nothing is known of what steps cost.
  std::vector<Option> Best() {
    StepCost prefill = MeanCost(cluster_, WorkerRole::kPrefill);
    StepCost decode = MeanCost(cluster_, WorkerRole::kDecode);
    if (!prefill.known()) prefill = decode;
    if (!decode.known()) decode = prefill;
    if (!decode.known()) return {};
    for (const WorkerSnapshot& worker : cluster_.workers) {
      if (worker.role != WorkerRole::kDecode || !MayTake(worker)) continue;
      decoders_.emplace(worker.id, WithCost(worker, decode));
    }
    for (const WorkerSnapshot& worker : cluster_.workers) {
      if (worker.role == WorkerRole::kPrefill) TryPrefill(worker, prefill);
    }
    if (!cluster_.allow_local_prefill) return std::move(best_);
    for (const auto& [id, worker] : decoders_) {
      Offer({nullptr, &worker, EstimateLocal(worker, request_)});
    }
    return std::move(best_);
  }

 private:
  static WorkerSnapshot WithCost(const WorkerSnapshot& worker,
                                 const StepCost& fallback) {
    WorkerSnapshot copy = worker;
    copy.paired_with.clear();
    copy.link_bandwidth.clear();
    if (!copy.step_cost.known()) copy.step_cost = fallback;
    return copy;
  }

  bool MayTake(const WorkerSnapshot& decode) const {
    return decode.usable && CouldEverHold(decode, request_.total_tokens) &&
           DecodeHasRoom(decode, request_.total_tokens) &&
           !Contains(request_.excluded, decode.id);
  }

  void TryPrefill(const WorkerSnapshot& prefill, const StepCost& fallback) {
    if (!prefill.usable || Contains(request_.excluded, prefill.id) ||
        !CouldEverHold(prefill, request_.prefill_tokens) ||
        !PrefillHasRoom(prefill, request_.prefill_tokens)) {
      return;
    }
    WorkerSnapshot known = WithCost(prefill, fallback);
    for (size_t i = 0; i < prefill.paired_with.size(); ++i) {
      const auto decode = decoders_.find(prefill.paired_with[i]);
      if (decode == decoders_.end()) continue;
      const double bandwidth =
          i < prefill.link_bandwidth.size() ? prefill.link_bandwidth[i] : 0;
      Offer({&prefill, &decode->second,
             EstimatePair(known, decode->second, bandwidth, request_)});
    }
  }

  void Offer(const Option& option) {
    if (!best_.empty() && option.Rank() > best_.front().Rank()) return;
    if (!best_.empty() && option.Rank() < best_.front().Rank()) best_.clear();
    best_.push_back(option);
  }

  const ClusterSnapshot& cluster_;
  const PlacementRequest& request_;
  // With room, by id; node-based, so that options may point into it.
  std::map<WorkerId, WorkerSnapshot> decoders_;
  std::vector<Option> best_;
};

}  // namespace

DelayEstimate EstimateLocal(const WorkerSnapshot& decode,
                            const PlacementRequest& request) {
  const StepCost& cost = decode.step_cost;
  const int64_t running = Sequences(decode);
  const int64_t queued = QueuedTokens(decode);
  const int64_t chunk = std::max<int64_t>(1, decode.token_budget - running);
  const double prefill = cost.PrefillSeconds(0, request.prefill_tokens, chunk);
  const double queue = cost.PrefillSeconds(0, queued, chunk);
  const auto steps = static_cast<double>(
      (queued + request.prefill_tokens + chunk - 1) / chunk);
  // The streams' own part of each of those steps; the step itself has a fixed
  // cost once.
  const double beside =
      running > 0
          ? DecodeStep(decode, running, decode.context_tokens) - cost.fixed
          : 0;
  DelayEstimate estimate;
  estimate.ttft_seconds = queue + prefill + steps * beside;
  estimate.delay_seconds = estimate.ttft_seconds;
  if (running > 0) {
    const auto own_steps =
        static_cast<double>((request.prefill_tokens + chunk - 1) / chunk);
    const double added = std::max(0.0, prefill - own_steps * cost.fixed);
    estimate.delay_seconds += static_cast<double>(running) * added;
  }
  AddDecode(decode, request, &estimate);
  Judge(request, &estimate);
  return estimate;
}

DelayEstimate EstimatePair(const WorkerSnapshot& prefill,
                           const WorkerSnapshot& decode, double bandwidth,
                           const PlacementRequest& request) {
  const int64_t chunk = std::max(1, prefill.token_budget);
  const double compute =
      prefill.step_cost.PrefillSeconds(0, request.prefill_tokens, chunk);
  const double queue =
      prefill.step_cost.PrefillSeconds(0, QueuedTokens(prefill), chunk);
  const double transfer = bandwidth > 0
                              ? static_cast<double>(decode.kv_bytes_per_token) *
                                    request.prefill_tokens / bandwidth
                              : 0;
  DelayEstimate estimate;
  estimate.ttft_seconds = queue + compute;
  // Layers go while the next ones are computed; the last one cannot.
  const double last_layer =
      decode.num_layers > 0 ? transfer / decode.num_layers : transfer;
  const double gap = std::max(transfer - compute, last_layer);
  estimate.delay_seconds = estimate.ttft_seconds + gap;
  AddDecode(decode, request, &estimate);
  Judge(request, &estimate);
  return estimate;
}

PlacementVerdict CostModelPlacement::Place(
    const ClusterSnapshot& cluster, const PlacementRequest& request) const {
  Search search(cluster, request);
  const std::vector<Option> best = search.Best();
  if (best.empty()) return least_load_.Place(cluster, request);
  const Option& chosen = best[cluster.round % best.size()];
  PlacementVerdict verdict;
  verdict.kind = chosen.prefill == nullptr
                     ? PlacementVerdict::Kind::kDecodeOnly
                     : PlacementVerdict::Kind::kPrefillAndDecode;
  verdict.reason = PlacementReason::kLeastDelay;
  if (chosen.prefill != nullptr) verdict.prefill = chosen.prefill->id;
  verdict.decode = chosen.decode->id;
  verdict.predicted_ttft_seconds = chosen.estimate.ttft_seconds;
  return verdict;
}

std::vector<PlacementCandidate> CostModelPlacement::Weigh(
    const ClusterSnapshot& cluster, const PlacementRequest& request,
    const PlacementVerdict& verdict, size_t most) const {
  std::vector<PlacementCandidate> candidates =
      least_load_.Weigh(cluster, request, verdict, most);
  if (verdict.reason != PlacementReason::kLeastDelay) return candidates;
  // Load did not decide: one with less of it was passed over for its costs.
  for (PlacementCandidate& candidate : candidates) {
    const bool decode = candidate.role == WorkerRole::kDecode;
    if (candidate.standing == PlacementCandidate::Standing::kNotPaired &&
        (decode || verdict.prefill == kNoWorker)) {
      candidate.standing = PlacementCandidate::Standing::kPassedOver;
    }
  }
  return candidates;
}

}  // namespace baton::scheduling
