#include "scheduling/preemption.h"

#include <algorithm>

#include "common/log.h"

namespace baton::scheduling {

bool StaysLonger(const PreemptionCandidate& a, const PreemptionCandidate& b) {
  if (a.request_class != b.request_class) {
    return a.request_class == RequestClass::kInteractive;
  }
  if (a.priority != b.priority) return a.priority > b.priority;
  return a.id < b.id;
}

std::optional<SequenceId> PickVictim(
    absl::Span<const PreemptionCandidate> candidates) {
  if (candidates.size() < 2) return std::nullopt;
  return std::max_element(candidates.begin(), candidates.end(), StaysLonger)
      ->id;
}

const char* PreemptionWayName(PreemptionWay way) {
  switch (way) {
    case PreemptionWay::kRecompute:
      return "recompute";
    case PreemptionWay::kSwap:
      return "swap";
  }
  LOG(FATAL) << "PreemptionWay " << static_cast<int>(way);
}

PreemptionWay CheaperWay(const PreemptionCost& cost) {
  if (cost.kv_bytes > cost.swap_room) return PreemptionWay::kRecompute;
  if (!cost.step.known() || cost.copy_bytes_per_second <= 0) {
    return PreemptionWay::kSwap;
  }
  const int32_t cached = std::min(cost.cached, cost.tokens);
  const double recompute =
      cost.step.PrefillSeconds(cached, cost.tokens - cached, cost.chunk) +
      static_cast<double>(cost.queued_tokens) * cost.step.per_token;
  const double swap =
      2 * static_cast<double>(cost.kv_bytes) / cost.copy_bytes_per_second;
  return swap < recompute ? PreemptionWay::kSwap : PreemptionWay::kRecompute;
}

}  // namespace baton::scheduling
