// Which sequences a decode worker's next step runs: continuous batching. Every
// running sequence gets one token a step; prompts to be computed here (local
// prefill) share what is left of the token budget, oldest first, in chunks.
//
// Used by the worker's loop thread only. The sequences are the caller's; a
// pointer stays in here until Remove. Sequences come with blocks for their
// whole length, so a running sequence never lacks one.
#pragma once

#include <cstdint>
#include <vector>

#include "scheduling/sequence.h"
#include "scheduling/step_plan.h"

namespace baton::scheduling {

struct DecodeSchedulerOptions {
  // Most tokens in one step, >= 1.
  int32_t token_budget = 512;
  // Tokens per KV block.
  int32_t block_size = 16;
};

class DecodeScheduler final {
 public:
  explicit DecodeScheduler(const DecodeSchedulerOptions& options);

  // Joins a sequence to the batch at the next step.
  // REQUIRES: not finished, at least one uncomputed token, blocks for
  // MaxComputed() tokens.
  void Add(Sequence* sequence);
  // Forgets a sequence; does not touch its blocks.
  void Remove(SequenceId id);

  // Plans the next step. When more sequences run than the budget has tokens,
  // they take turns. Empty when nothing runs.
  StepPlan Plan();

  int32_t num_running() const { return static_cast<int32_t>(running_.size()); }
  // Prompt tokens still to be computed here.
  int64_t QueuedTokens() const;
  // Tokens that are computed, over all sequences.
  int64_t ContextTokens() const;

  void CheckInvariants() const;

 private:
  const DecodeSchedulerOptions options_;
  std::vector<Sequence*> running_;
  // Where the next step's turn begins when not all sequences fit.
  size_t turn_ = 0;
};

}  // namespace baton::scheduling
