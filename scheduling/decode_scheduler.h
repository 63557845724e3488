// Which sequences a decode worker's next step runs: continuous batching. Every
// running sequence gets a token a step; prompts to be computed here (local
// prefill) share what is left of the step, in the order of
// scheduling/prompt_queue.h, in chunks.
//
// What is left has two bounds: the token budget, and, while streams run or are
// about to come, the time that they may wait for a token
// (scheduling/step_budget.h); a stream that is behind its target shortens it
// until it has caught up. However short that is, a step computes 16 tokens of
// the first prompt: the prompt becomes a stream in the end, and steps have a
// fixed cost that would else be paid for nothing. While no stream runs or is
// about to come, the token budget is the only bound.
//
// While no prompt waits, streams may have guesses at their next tokens checked
// along with the last one: as many as are likely enough to come true that the
// step gives more tokens in its time, by what it is predicted to cost, and that
// no stream waits longer than it may. An engine that has weights of fewer bits
// guesses by itself, in steps that come before (BeginGuesses, NextGuesses): as
// long as one more gives more tokens in the time of all.
//
// Used by the worker's loop thread only. The sequences are the caller's; a
// pointer stays in here until Remove. The caller gives them blocks as they grow
// (scheduling/preemption.h); a stream without one for its next token sits the
// step out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "scheduling/prompt_queue.h"
#include "scheduling/sequence.h"
#include "scheduling/step_budget.h"
#include "scheduling/step_plan.h"

namespace baton::scheduling {

struct DecodeSchedulerOptions {
  // Most tokens in one step, >= 1.
  int32_t token_budget = 512;
  // Tokens per KV block.
  int32_t block_size = 16;
  // What interactive streams may wait for a token, in seconds, when they bring
  // no target of their own; 0: as long as it takes. Batch streams without a
  // target always may.
  double itl_target_seconds = 0;
  // Most guesses that a step checks of a stream (Drafter); 0: none. Whether it
  // checks so many where it can, though that may not pay.
  int32_t max_drafts = 0;
  bool always_drafts = false;
  // Most steps in a row that pass over the oldest prompt, >= 1.
  int32_t patience = 8;
};

// How a step that computes prompts beside running streams came out.
struct MixedStep {
  // 0: it was no such step.
  int32_t prompt_tokens = 0;
  // The time that it may take while no stream is behind; 0: any.
  double budget_seconds = 0;
  // 0: not known.
  double predicted_seconds = 0;
  // Whether the time, and not the token budget, left prompt tokens waiting.
  bool time_bound = false;
};

class DecodeScheduler final {
 public:
  explicit DecodeScheduler(const DecodeSchedulerOptions& options);

  // Joins a sequence to the batch at the next step. `now` as in StepOutlook: a
  // stream waits since then.
  // REQUIRES: not finished, at least one uncomputed token, blocks for all its
  // tokens.
  void Add(Sequence* sequence, double now = 0);
  // Forgets a sequence; does not touch its blocks.
  void Remove(SequenceId id);

  // Plans the next step. When more sequences run than the budget has tokens,
  // they take turns. Empty when nothing runs.
  StepPlan Plan(const StepOutlook& outlook = {});

  // Before Plan, and with nothing in between but the steps that NextGuesses
  // plans (StepPlan::draft): until it plans none.
  // REQUIRES: the engine has weights for it.
  void BeginGuesses(const StepOutlook& outlook);
  // One more guess at some streams, where that pays; `cost` of such steps, as
  // far as it is known.
  StepPlan NextGuesses(const StepOutlook& outlook, const StepCost& cost);
  // What that step sampled.
  void TakeGuesses(const StepResult& result);

  // Whether the step behind one that runs is to wait for its tokens, as guesses
  // at what comes after these would pay (Sequence::MayDraft).
  // REQUIRES: that step has all running sequences, with one token each, and all
  // can follow it.
  bool WaitsToGuess(const StepOutlook& outlook);

  // A step of that shape ran that was not planned here: another of all streams.
  void RanAhead(double now, const StepShape& shape);

  // Of the last step that was planned.
  const MixedStep& mixed() const { return mixed_; }

  // In the order in which they joined; valid until one joins or leaves.
  absl::Span<Sequence* const> running() const { return running_; }
  // Whether it has a block for its next token.
  bool HasBlocks(const Sequence& sequence) const {
    return int64_t{sequence.blocks().size()} * options_.block_size >=
           sequence.num_tokens();
  }

  // Whether it lacks one for guesses at what comes behind that.
  bool LacksRoomToGuess(const Sequence& sequence) const {
    return options_.max_drafts > 0 &&
           !sequence.HasRoomToGuess(options_.max_drafts, options_.block_size);
  }

  int32_t num_running() const { return static_cast<int32_t>(running_.size()); }
  // Prompt tokens still to be computed here.
  int64_t QueuedTokens() const;
  // Sequences that have them.
  int32_t NumPrompts() const;
  // Tokens that are computed, over all sequences.
  int64_t ContextTokens() const;

  // What the step that was planned last leaves of the time that streams, and
  // those that are about to come, may wait for a token, or of less where one is
  // behind: for another step before the next one. 0: any time; else at least a
  // thousandth of what they may wait.
  double SpareSeconds(const StepOutlook& outlook);

  void CheckInvariants() const;

 private:
  void PlanStreams(const StepOutlook& outlook, StepPlan* plan);
  // What all streams' next tokens cost, where guesses may be checked beside
  // them; not known: none are.
  StepShape StreamsAlone(int32_t budget) const;
  // What a step of these streams may check, and what that costs.
  struct Guessing {
    double each = 0;    // of a token in the step, seconds
    double taken = 0;   // by the step so far
    double most = 0;    // that it may take; 0: any
    int32_t spare = 0;  // tokens
  };
  Guessing GuessingBeside(const StepShape& alone, const StepOutlook& outlook,
                          int32_t budget) const;
  // Seconds of one guess more, to check it.
  static double SecondsOfGuess(const StepCost& cost, const Sequence& sequence);
  // Whether the `count`-th guess at a sequence pays, each of which takes
  // `more`.
  bool Pays(const Guessing& guessing, double more, int32_t count,
            double chance) const;
  void PlanPrompts(const StepOutlook& outlook, StepPlan* plan);
  // Prompts that have become streams since the last step.
  void MarkStreams(double now);
  // What it may wait for a token; 0: as long as it takes.
  double ItlTarget(const Sequence& sequence) const;
  // The time for a step that keeps the targets of all streams, those that are
  // about to come included; 0: none has one.
  double BudgetSeconds(absl::Span<const Sequence* const> coming) const;
  // The same, or less where one is behind.
  double CatchUpSeconds(double now, double budget);

  const DecodeSchedulerOptions options_;
  std::vector<Sequence*> running_;
  // Of each of them, since when it is a stream, and its output by then.
  struct Beginning {
    double at = 0;
    int32_t output = -1;  // it is none yet
  };
  std::vector<Beginning> beginnings_;
  // Those of them that have more than one token to compute.
  PromptQueue prompts_;
  ChunkRamp ramp_;
  // Where the next step's turn begins when not all sequences fit.
  size_t turn_ = 0;
  // Streams that have guesses made, and what the steps that do so and the one
  // that checks them are to give, by now.
  std::vector<Sequence*> guessing_;
  Guessing guesses_;
  double guessed_tokens_ = 0;
  MixedStep mixed_;
  StepShape last_shape_;  // of the last step
};

}  // namespace baton::scheduling
