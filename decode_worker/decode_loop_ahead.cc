// DecodeLoop: steps that the engine has before the one that they follow is
// done, so that a device need not wait for the loop in between
// (docs/adr/0045-steps-ahead.md).
//
// Such a step is planned while another runs, of that one's streams alone: each
// goes on with the token that is being sampled, or leaves when its length ends
// it. Anything else that the next step should heed (somebody waits for it, or
// is about to; blocks are short; guesses at what comes behind that token would
// pay) leaves it to the next turn. What is found out later changes nothing of
// it: of a sequence that is over by then its tokens are dropped, and its blocks
// are kept until the step is done.
#include <algorithm>
#include <optional>
#include <utility>

#include "common/log.h"
#include "decode_worker/decode_loop.h"

namespace baton::decode_worker {

using scheduling::PlannedSequence;
using scheduling::PooledBlocks;
using scheduling::Sequence;
using scheduling::StepPlan;
using scheduling::StepResult;

void DecodeLoop::WhileRunning(const StepPlan& running) {
  PlanAhead(running);
  if (publishes_beside_) Publish();
}

void DecodeLoop::PlanAhead(const StepPlan& running) {
  if (!options_.run_ahead || !engine_->runs_ahead()) return;
  if (other_waits_ != nullptr && other_waits_()) return;
  if (inbox_->size() > 0 || swap_store_.num_sequences() > 0 ||
      !landings_.NearEnd().empty() || adapters_->WantsTurn()) {
    return;
  }
  StepPlan plan;
  int alive = 0;
  for (const PlannedSequence& planned : running.sequences) {
    Attempt* const attempt = attempts_.Find(planned.sequence);
    // Which of its guesses come true says what is next.
    if (planned.num_drafts > 0) return;
    if (attempt == nullptr) continue;
    ++alive;
    Sequence& sequence = *attempt->sequence;
    if (attempt->tokens_by_step > 0 || sequence.uncomputed() != 1 ||
        !sequence.CanFollow()) {
      return;
    }
    if (sequence.EndsNext()) continue;
    if (sequence.blocks().size() <
        engine_->kv_layout().BlocksFor(sequence.num_tokens() + 1)) {
      std::optional<PooledBlocks> block = pool_.Allocate(1);
      if (!block.has_value()) return;
      sequence.blocks().Append(*std::move(block));
    }
    sequence.AppendFollowing(&plan);
  }
  // Others wait for their turn, or have joined since.
  if (alive != scheduler_.num_running() || plan.sequences.empty()) return;
  if (scheduler_.WaitsToGuess({.cost = step_cost_.cost()})) return;
  if (!engine_->RunAhead(plan)) return;
  for (PlannedSequence& planned : plan.sequences) {
    planned.blocks = {};
    planned.sampling = nullptr;
    planned.history = {};
    planned.forbidden = {};
    planned.allowed = nullptr;
  }
  ahead_ = std::move(plan);
}

void DecodeLoop::ExecuteAhead() {
  const StepPlan plan = *std::exchange(ahead_, std::nullopt);
  // It began when the one before it ended.
  const absl::Time started = ahead_since_;
  const StepResult result = engine_->Await([&] { WhileRunning(plan); });
  unpublished_ = publishes_beside_;
  held_for_ahead_.clear();
  metrics_->steps_ahead->Increment();
  scheduler_.RanAhead(absl::ToDoubleSeconds(started - absl::UnixEpoch()),
                      scheduling::ShapeOf(plan));
  Finish(plan, result, started);
}

bool DecodeLoop::IsAhead(SequenceId sequence) const {
  return ahead_.has_value() &&
         std::any_of(ahead_->sequences.begin(), ahead_->sequences.end(),
                     [&](const PlannedSequence& planned) {
                       return planned.sequence == sequence;
                     });
}

}  // namespace baton::decode_worker
