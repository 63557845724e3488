#include "scheduling/prompt_queue.h"

#include <algorithm>
#include <limits>

#include "common/log.h"

namespace baton::scheduling {
namespace {

// Of what is left of a prompt.
double PredictedSeconds(const Sequence& sequence, int32_t cached,
                        const StepCost& cost, const PromptPace& pace) {
  const bool started = sequence.blocks().size() > 0;
  const int64_t computed =
      started ? sequence.computed() : std::max(sequence.computed(), cached);
  const int64_t tokens = sequence.num_tokens() - computed;
  const int64_t steps = (tokens + pace.chunk - 1) / pace.chunk;
  return cost.PrefillSeconds(computed, tokens, pace.chunk) +
         static_cast<double>(steps) * pace.beside_seconds;
}

}  // namespace

PromptQueue::PromptQueue(int32_t patience) : patience_(patience) {
  CHECK_GE(patience_, 1);
}

void PromptQueue::Add(Sequence* sequence, double now, int32_t cached) {
  CHECK_GE(sequence->uncomputed(), 1);
  const double target = sequence->urgency().ttft_target_seconds;
  entries_.push_back({.sequence = sequence,
                      .turn = turn_,
                      .cached = cached,
                      .due = target > 0
                                 ? now + target
                                 : std::numeric_limits<double>::infinity()});
}

void PromptQueue::Erase(size_t index) {
  if (index == 0) {
    passed_over_ = 0;
    oldest_planned_ = others_planned_ = false;
  }
  entries_.erase(entries_.begin() + static_cast<ptrdiff_t>(index));
}

void PromptQueue::Remove(SequenceId id) {
  const auto it =
      std::find_if(entries_.begin(), entries_.end(),
                   [id](const Entry& e) { return e.sequence->id() == id; });
  if (it != entries_.end()) Erase(static_cast<size_t>(it - entries_.begin()));
}

void PromptQueue::RemoveStreams() {
  for (size_t i = entries_.size(); i > 0; --i) {
    if (entries_[i - 1].sequence->uncomputed() <= 1) Erase(i - 1);
  }
}

bool PromptQueue::GoesBefore(const Ranked& a, const Ranked& b) {
  const Urgency& of_a = a.entry->sequence->urgency();
  const Urgency& of_b = b.entry->sequence->urgency();
  if (of_a.request_class != of_b.request_class) {
    return of_a.request_class == RequestClass::kInteractive;
  }
  if (a.late != b.late) return b.late;
  if (of_a.priority != of_b.priority) return of_a.priority > of_b.priority;
  if (a.entry->turn != b.entry->turn) return a.entry->turn < b.entry->turn;
  if (a.entry->cached != b.entry->cached) {
    return a.entry->cached > b.entry->cached;
  }
  return a.entry < b.entry;  // neighbours in order of arrival
}

void PromptQueue::Judge(const StepOutlook& outlook, const PromptPace& pace,
                        std::vector<Ranked>* ranked) {
  if (!outlook.cost.known()) return;
  double at = outlook.now;
  for (Ranked& r : *ranked) {
    const double end =
        at + PredictedSeconds(*r.entry->sequence, r.entry->cached, outlook.cost,
                              pace);
    r.late = end > r.entry->due;
    // Those that are late come behind the others.
    if (!r.late) at = end;
  }
}

std::vector<Sequence*> PromptQueue::Order(const StepOutlook& outlook,
                                          const PromptPace& pace) {
  CHECK_GE(pace.chunk, 1);
  ++turn_;
  CountPassedOver();
  std::vector<Ranked> ranked;
  ranked.reserve(entries_.size());
  for (const Entry& entry : entries_) ranked.push_back({&entry});
  std::sort(ranked.begin(), ranked.end(), GoesBefore);
  Judge(outlook, pace, &ranked);
  std::sort(ranked.begin(), ranked.end(), GoesBefore);
  if (passed_over_ >= patience_) {
    const auto oldest = std::find_if(
        ranked.begin(), ranked.end(),
        [this](const Ranked& r) { return r.entry == &entries_.front(); });
    std::rotate(ranked.begin(), oldest, oldest + 1);
  }
  std::vector<Sequence*> order;
  order.reserve(ranked.size());
  for (const Ranked& r : ranked) order.push_back(r.entry->sequence);
  return order;
}

void PromptQueue::Planned(const Sequence* sequence) {
  CHECK(!entries_.empty());
  if (sequence == entries_.front().sequence) {
    oldest_planned_ = true;
  } else {
    others_planned_ = true;
  }
}

void PromptQueue::CountPassedOver() {
  if (oldest_planned_) {
    passed_over_ = 0;
  } else if (others_planned_) {
    ++passed_over_;
  }
  oldest_planned_ = others_planned_ = false;
}

int64_t PromptQueue::UncomputedTokens() const {
  int64_t tokens = 0;
  for (const Entry& entry : entries_) tokens += entry.sequence->uncomputed();
  return tokens;
}

void PromptQueue::CheckInvariants(int32_t block_size) const {
  for (const Entry& entry : entries_) {
    CHECK(!entry.sequence->finished().has_value());
    CHECK_GE(entry.sequence->uncomputed(), 1);
    entry.sequence->CheckInvariants(block_size);
  }
}

}  // namespace baton::scheduling
