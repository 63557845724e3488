#include "scheduling/decode_scheduler.h"

#include <algorithm>

#include "common/log.h"

namespace baton::scheduling {

DecodeScheduler::DecodeScheduler(const DecodeSchedulerOptions& options)
    : options_(options) {
  CHECK_GE(options_.token_budget, 1);
  CHECK_GE(options_.block_size, 1);
}

void DecodeScheduler::Add(Sequence* sequence) {
  CHECK(!sequence->finished().has_value());
  CHECK_GE(sequence->uncomputed(), 1);
  CHECK_GE(int64_t{sequence->blocks().size()} * options_.block_size,
           sequence->MaxComputed());
  running_.push_back(sequence);
}

void DecodeScheduler::Remove(SequenceId id) {
  const auto it = std::find_if(running_.begin(), running_.end(),
                               [id](Sequence* s) { return s->id() == id; });
  if (it != running_.end()) running_.erase(it);
}

StepPlan DecodeScheduler::Plan() {
  StepPlan plan;
  if (running_.empty()) return plan;
  int32_t budget = options_.token_budget;
  // Streams first: a prompt never delays the next token of a running one.
  const size_t count = running_.size();
  if (turn_ >= count) turn_ = 0;
  size_t planned = 0;
  for (; planned < count && budget > 0; ++planned) {
    const Sequence* sequence = running_[(turn_ + planned) % count];
    if (sequence->uncomputed() > 1) continue;
    sequence->AppendTo(&plan, 1);
    --budget;
  }
  turn_ = (turn_ + planned) % count;
  for (const Sequence* sequence : running_) {
    if (budget == 0) break;
    if (sequence->uncomputed() == 1) continue;
    const int32_t tokens = std::min(budget, sequence->uncomputed());
    sequence->AppendTo(&plan, tokens);
    budget -= tokens;
  }
  return plan;
}

int64_t DecodeScheduler::QueuedTokens() const {
  int64_t tokens = 0;
  for (const Sequence* sequence : running_) {
    if (sequence->uncomputed() > 1) tokens += sequence->uncomputed();
  }
  return tokens;
}

int64_t DecodeScheduler::ContextTokens() const {
  int64_t tokens = 0;
  for (const Sequence* sequence : running_) {
    tokens += sequence->num_tokens() - sequence->uncomputed();
  }
  return tokens;
}

void DecodeScheduler::CheckInvariants() const {
  for (const Sequence* sequence : running_) {
    CHECK(!sequence->finished().has_value());
    sequence->CheckInvariants(options_.block_size);
    CHECK_GE(int64_t{sequence->blocks().size()} * options_.block_size,
             sequence->MaxComputed());
  }
}

}  // namespace baton::scheduling
