// Which prompt chunks a prefill worker's next step runs: first come first
// served under a token budget, several sequences in one step while the budget
// lasts.
//
// Used by the worker's loop thread only. The sequences are the caller's; a
// pointer stays in here until Remove.
#pragma once

#include <cstdint>
#include <deque>

#include "scheduling/block_pool.h"
#include "scheduling/prefix_cache.h"
#include "scheduling/sequence.h"
#include "scheduling/step_plan.h"

namespace baton::scheduling {

struct PrefillSchedulerOptions {
  // Most tokens in one step, >= 1.
  int32_t token_budget = 512;
  // Tokens per KV block.
  int32_t block_size = 16;
};

class PrefillScheduler final {
 public:
  // A sequence gets its blocks when its first chunk is planned: those of a
  // prefix that is cached, computed already, and new ones from the pool. Not
  // sooner: what the queue held would be missing to the sequence at its head,
  // for ever.
  // Without a cache when it is null.
  PrefillScheduler(const PrefillSchedulerOptions& options, BlockPool* pool,
                   PrefixCache* cache = nullptr);

  // Queues a sequence behind all others.
  void Add(Sequence* sequence);
  // Forgets a sequence, wherever it stands; does not touch its blocks.
  void Remove(SequenceId id);

  // Plans the next step, giving blocks to sequences that start. The oldest
  // sequence comes first; one that cannot get its blocks holds back all behind
  // it, so that a long prompt is not passed for ever. Empty when nothing can
  // run.
  StepPlan Plan();

  int32_t num_waiting() const { return static_cast<int32_t>(queue_.size()); }
  // Tokens not yet computed, over all sequences. Takes time in their number.
  int64_t QueuedTokens() const;

  void CheckInvariants() const;

 private:
  // False when there are too few.
  bool GiveBlocks(Sequence* sequence);

  const PrefillSchedulerOptions options_;
  BlockPool* const pool_;
  PrefixCache* const cache_;
  std::deque<Sequence*> queue_;
};

}  // namespace baton::scheduling
