#include "scheduling/prefill_scheduler.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "common/log.h"

namespace baton::scheduling {

PrefillScheduler::PrefillScheduler(const PrefillSchedulerOptions& options,
                                   BlockPool* pool, PrefixCache* cache)
    : options_(options), pool_(pool), cache_(cache) {
  CHECK_GE(options_.token_budget, 1);
  CHECK_GE(options_.block_size, 1);
}

void PrefillScheduler::Add(Sequence* sequence) {
  CHECK_GE(sequence->uncomputed(), 1);
  queue_.push_back(sequence);
}

void PrefillScheduler::Remove(SequenceId id) {
  const auto it = std::find_if(queue_.begin(), queue_.end(),
                               [id](Sequence* s) { return s->id() == id; });
  if (it != queue_.end()) queue_.erase(it);
}

StepPlan PrefillScheduler::Plan() {
  StepPlan plan;
  int32_t budget = options_.token_budget;
  for (Sequence* sequence : queue_) {
    if (budget == 0) break;
    if (sequence->blocks().size() == 0 && !GiveBlocks(sequence)) break;
    const int32_t count = std::min(budget, sequence->uncomputed());
    sequence->AppendTo(&plan, count);
    budget -= count;
  }
  return plan;
}

bool PrefillScheduler::GiveBlocks(Sequence* sequence) {
  const int32_t count =
      (sequence->num_tokens() + options_.block_size - 1) / options_.block_size;
  PooledBlocks blocks;
  // At least the last token is computed: what comes after it is sampled.
  if (cache_ != nullptr) {
    blocks = cache_->Match(sequence, sequence->num_tokens() - 1);
  }
  std::optional<PooledBlocks> rest = pool_->Allocate(count - blocks.size());
  if (!rest.has_value()) return false;
  blocks.Append(*std::move(rest));
  sequence->blocks() = std::move(blocks);
  if (sequence->cached() > 0) sequence->AdoptComputed(sequence->cached());
  return true;
}

int64_t PrefillScheduler::QueuedTokens() const {
  int64_t tokens = 0;
  for (const Sequence* sequence : queue_) tokens += sequence->uncomputed();
  return tokens;
}

void PrefillScheduler::CheckInvariants() const {
  bool started = true;
  for (const Sequence* sequence : queue_) {
    CHECK(!sequence->finished().has_value());
    sequence->CheckInvariants(options_.block_size);
    // Sequences start in order: none has blocks behind one that has none.
    if (sequence->blocks().size() == 0) started = false;
    CHECK(started || sequence->blocks().size() == 0);
  }
}

}  // namespace baton::scheduling
