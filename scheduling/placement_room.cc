#include "scheduling/placement_room.h"

#include <algorithm>

#include "scheduling/step_budget.h"

namespace baton::scheduling {

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
  // As a step of the worker keeps it.
  const double target = StepBudgetSeconds(request.batch_itl_seconds);
  const int64_t running = Sequences(worker);
  if (target <= 0 || running == 0 || !worker.step_cost.known()) return true;
  // Those that are not there yet are taken to be like this one.
  const int64_t coming = std::max<int64_t>(0, running - worker.running);
  const int64_t context =
      worker.context_tokens + (coming + 1) * request.prefill_tokens;
  return worker.step_cost.Seconds({running + 1, context, running + 1}) <=
             target ||
         worker.step_cost.Seconds({1, request.prefill_tokens, 1}) > target;
}

}  // namespace baton::scheduling
