// Which prompt chunks a prefill worker's next step runs: in the order of
// scheduling/prompt_queue.h under a token budget, several sequences in one step
// while the budget lasts and it pays (PaysToJoin, scheduling/step_budget.h).
//
// Beside the streams of a dual worker, a step is bounded in time, too; however
// short that is, it computes kLeastChunk tokens of the first prompt.
//
// A prompt that has begun keeps its blocks, but not its place: one that is more
// urgent goes before it between two chunks.
//
// Used by the worker's loop thread only. The sequences are the caller's; a
// pointer stays in here until Remove.
#pragma once

#include <cstdint>

#include "absl/container/flat_hash_set.h"
#include "absl/types/span.h"
#include "common/ids.h"
#include "scheduling/block_pool.h"
#include "scheduling/prefix_cache.h"
#include "scheduling/prefix_loader.h"
#include "scheduling/prompt_queue.h"
#include "scheduling/sequence.h"
#include "scheduling/step_plan.h"

namespace baton::scheduling {

struct PrefillSchedulerOptions {
  // Most tokens in one step, >= 1.
  int32_t token_budget = 512;
  // Tokens per KV block.
  int32_t block_size = 16;
  // Most steps in a row that pass over the oldest prompt, >= 1.
  int32_t patience = 8;
};

class PrefillScheduler final {
 public:
  // A sequence gets its blocks when its first chunk is planned: those of a
  // prefix that is cached, computed already, and new ones from the pool. Not
  // sooner: what the queue held would be missing to the sequence at its head,
  // for ever.
  // What `loader` has behind that is loaded first, meanwhile others run; of the
  // kLoadAhead that come next before their turn, while blocks are there.
  // Without a cache, or a loader, when it is null.
  PrefillScheduler(const PrefillSchedulerOptions& options, BlockPool* pool,
                   PrefixCache* cache = nullptr,
                   PrefixLoader* loader = nullptr);

  // Queues a sequence. `now` as in StepOutlook.
  void Add(Sequence* sequence, double now = 0);
  // Forgets a sequence, wherever it stands; does not touch its blocks.
  void Remove(SequenceId id);

  // Plans the next step, giving blocks to sequences that start. When one cannot
  // get its blocks, none of those behind it starts, so that a long prompt is
  // not passed for ever; those that have begun go on, and give theirs back in
  // the end. Empty when nothing can run.
  StepPlan Plan(const StepOutlook& outlook = {});

  // Most prompts that have blocks before their turn.
  static constexpr int32_t kLoadAhead = 2;

  int32_t num_waiting() const { return queue_.size(); }
  // Of the last plan: the blocks for the whole of the first prompt that has not
  // started, when there are too few for it; else 0.
  int32_t blocks_wanted() const { return blocks_wanted_; }
  // Tokens not yet computed, over all sequences. Takes time in their number.
  int64_t QueuedTokens() const { return queue_.UncomputedTokens(); }

  void CheckInvariants() const;

 private:
  // Tokens of its prompt that the cache has now.
  int32_t Cached(const Sequence& sequence) const;
  int32_t BlocksOf(const Sequence& sequence) const;
  // Of the first prompt that has none yet, if there are too few for it.
  void WantBlocks(absl::Span<Sequence* const> order, int32_t kept);
  // False when there are too few, `kept` of which it leaves.
  bool GiveBlocks(Sequence* sequence, int32_t kept);
  // False: nothing is to be loaded for the sequence, which has its blocks.
  bool Load(Sequence* sequence, const StepOutlook& outlook);
  // For those that come next.
  void LoadAhead(absl::Span<Sequence* const> order, const StepOutlook& outlook);
  // Tokens of the prompt, of at most `most`, that join a step of `shape` in the
  // outlook's time.
  static int32_t Fitting(const StepOutlook& outlook, const StepShape& shape,
                         int32_t computed, int32_t most);

  const PrefillSchedulerOptions options_;
  BlockPool* const pool_;
  PrefixCache* const cache_;
  PrefixLoader* const loader_;
  PromptQueue queue_;
  // Those that LoadAhead found nothing for, which it does not look for again,
  // and those that it gave blocks to: until their turn.
  absl::flat_hash_set<SequenceId> not_stored_;
  absl::flat_hash_set<SequenceId> ahead_;
  int32_t blocks_wanted_ = 0;
};

}  // namespace baton::scheduling
