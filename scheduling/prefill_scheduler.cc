#include "scheduling/prefill_scheduler.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "common/log.h"
#include "scheduling/step_budget.h"

namespace baton::scheduling {

PrefillScheduler::PrefillScheduler(const PrefillSchedulerOptions& options,
                                   BlockPool* pool, PrefixCache* cache)
    : options_(options), pool_(pool), cache_(cache), queue_(options.patience) {
  CHECK_GE(options_.token_budget, 1);
  CHECK_GE(options_.block_size, 1);
}

void PrefillScheduler::Add(Sequence* sequence, double now) {
  queue_.Add(sequence, now, Cached(*sequence));
}

int32_t PrefillScheduler::Cached(const Sequence& sequence) const {
  if (cache_ == nullptr) return 0;
  return cache_->CachedTokens(sequence, sequence.num_tokens() - 1);
}

void PrefillScheduler::Remove(SequenceId id) { queue_.Remove(id); }

StepPlan PrefillScheduler::Plan(const StepOutlook& outlook) {
  StepPlan plan;
  if (queue_.empty()) return plan;
  int32_t budget = options_.token_budget;
  bool may_start = true;
  int32_t waiting = queue_.size();
  int32_t ending = 0;
  for (Sequence* sequence :
       queue_.Order(outlook, {.chunk = options_.token_budget})) {
    if (budget == 0) break;
    const bool begun = sequence->blocks().size() > 0;
    if (!begun && !may_start) continue;
    // Before it gets blocks: in its own step, more may be cached.
    const int32_t computed = begun ? sequence->computed() : Cached(*sequence);
    const int32_t tokens = std::min(budget, sequence->num_tokens() - computed);
    if (!PaysToJoin(outlook.cost,
                    {.tokens = tokens,
                     .context_tokens = ContextTokens(computed, tokens)},
                    ending, waiting)) {
      break;
    }
    if (!begun) {
      may_start = GiveBlocks(sequence);
      if (!may_start) continue;
    }
    const int32_t count = std::min(budget, sequence->uncomputed());
    sequence->AppendTo(&plan, count);
    queue_.Planned(sequence);
    budget -= count;
    --waiting;
    ending += count == sequence->uncomputed();
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

void PrefillScheduler::CheckInvariants() const {
  queue_.CheckInvariants(options_.block_size);
}

}  // namespace baton::scheduling
