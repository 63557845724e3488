#include "scheduling/placement_room.h"

#include <algorithm>

#include "scheduling/step_budget.h"

namespace baton::scheduling {
namespace {

// Of a decode worker's blocks, what is little (TakesFromPrefill), and of the
// prompt's tokens, what is little to do for a prefill worker.
constexpr double kLittleMemory = 0.25;
constexpr double kLittleWork = 0.5;

// As a step of the worker keeps it.
double BatchBoundSeconds(const PlacementRequest& request) {
  return StepBudgetSeconds(request.batch_itl_seconds);
}

bool IsBatchBound(const WorkerSnapshot& worker,
                  const PlacementRequest& request) {
  return request.batch_itl_seconds > 0 && Sequences(worker) > 0 &&
         worker.step_cost.known();
}

// A step with the request beside what runs there. Those that are not there yet
// are taken to be like this one.
StepShape BatchWith(const WorkerSnapshot& worker,
                    const PlacementRequest& request) {
  const int64_t running = Sequences(worker);
  const int64_t coming = std::max<int64_t>(0, running - worker.running);
  return {running + 1,
          worker.context_tokens + (coming + 1) * request.prefill_tokens,
          running + 1};
}

}  // namespace

double DecodeLoad(const WorkerSnapshot& worker) {
  const double blocks = 1.0 - static_cast<double>(FreeBlocks(worker)) /
                                  std::max(1, worker.total_blocks);
  return blocks + static_cast<double>(Sequences(worker)) /
                      std::max(1, worker.max_sequences);
}

double Bandwidth(const WorkerSnapshot& prefill, WorkerId decode) {
  LinkFinder link(decode);
  return link.Find(prefill) ? link.bandwidth() : 0;
}

bool LinkFinder::Find(const WorkerSnapshot& prefill) {
  const std::vector<WorkerId>& paired = prefill.paired_with;
  if (last_ >= paired.size() || paired[last_] != decode_) {
    const auto it = std::lower_bound(paired.begin(), paired.end(), decode_);
    if (it == paired.end() || *it != decode_) return false;
    last_ = static_cast<size_t>(it - paired.begin());
  }
  bandwidth_ =
      last_ < prefill.link_bandwidth.size() ? prefill.link_bandwidth[last_] : 0;
  return true;
}

CachedPrompts::CachedPrompts(const PlacementRequest& request)
    : most_(std::max(0, request.prefill_tokens - 1)), cached_(request.cached) {
  constexpr size_t kFew = 16;
  constexpr uint64_t kMostPerEntry = 16;
  if (cached_.size() <= kFew) return;
  first_ = static_cast<uint64_t>(cached_.front().worker);
  const uint64_t range =
      static_cast<uint64_t>(cached_.back().worker) - first_ + 1;
  if (range > kMostPerEntry * cached_.size()) return;
  table_.resize(range);
  for (const CachedPrompt& cached : cached_) {
    table_[static_cast<uint64_t>(cached.worker) - first_] = cached.tokens;
  }
}

int32_t CachedPrompts::Bounded(int32_t tokens) const {
  return std::clamp(tokens, 0, most_);
}

int32_t CachedPrompts::Tokens(WorkerId id) const {
  if (!table_.empty()) {
    const uint64_t at = static_cast<uint64_t>(id) - first_;
    return at < table_.size() ? Bounded(table_[at]) : 0;
  }
  const auto it = std::lower_bound(
      cached_.begin(), cached_.end(), id,
      [](const CachedPrompt& cached, WorkerId w) { return cached.worker < w; });
  return it == cached_.end() || it->worker != id ? 0 : Bounded(it->tokens);
}

bool KeepsBatchBound(const WorkerSnapshot& worker,
                     const PlacementRequest& request) {
  if (!IsBatchBound(worker, request)) return true;
  return worker.step_cost.Seconds(BatchWith(worker, request)) <=
             BatchBoundSeconds(request) ||
         worker.step_cost.Seconds({1, request.prefill_tokens, 1}) >
             BatchBoundSeconds(request);
}

bool KeepsBatchBoundBesidePrompt(const WorkerSnapshot& worker,
                                 const PlacementRequest& request) {
  if (!IsBatchBound(worker, request)) return true;
  StepShape step = BatchWith(worker, request);
  step.tokens += std::min(kLeastChunk, request.prefill_tokens) - 1;
  return worker.step_cost.Seconds(step) <= BatchBoundSeconds(request);
}

bool TakesFromPrefill(const WorkerSnapshot& decode,
                      const PlacementRequest& request, int64_t least_queued) {
  if (!request.stands_by || Sequences(decode) == 0) return false;
  const int32_t left = FreeBlocks(decode) - BlocksTaken(decode, request);
  return left < kLittleMemory * decode.total_blocks &&
         static_cast<double>(least_queued) <
             kLittleWork * request.prefill_tokens;
}

}  // namespace baton::scheduling
