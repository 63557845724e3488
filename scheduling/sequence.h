// The mutable progress of one request on one worker: its tokens, how many of
// them are computed, and its blocks.
//
// Used by the worker's loop thread only.
//
// Invariants (CheckInvariants):
//   1. 1 <= prompt_length <= tokens.size().
//   2. 0 <= computed < tokens.size() while the sequence is not finished: the
//      last token's KV is written by the step that runs it.
//   3. The block table covers all computed tokens.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "common/ids.h"
#include "common/stable_hash.h"
#include "scheduling/block_pool.h"
#include "scheduling/drafter.h"
#include "scheduling/output_guide.h"
#include "scheduling/request.h"
#include "scheduling/step_plan.h"

namespace baton::scheduling {

// How far the blocks of a sequence are those of the prefix cache. The cache's
// own note (PrefixCache).
struct CachedPrefix {
  // Tokens whose KV was there when the sequence got its blocks.
  int32_t matched_tokens = 0;
  // And of them, what was loaded into its own blocks (prefix_loader.h).
  int32_t loaded_tokens = 0;
  // Its first so many blocks are in the cache, or their likes; the last of them
  // by hash and by number.
  int32_t num_blocks = 0;
  Hash128 hash;
  uint64_t entry = 0;
  // Its KV is less precise than others may rely on: it does not enter.
  bool kept_out = false;
};

class Sequence final {
 public:
  // `tokens` is the prompt and then output tokens of an earlier attempt.
  // `top_logprobs` as in RequestSpec. Only sequences of the same `cache_salt`
  // share cached prefixes. `adapter` as in PlannedSequence; of another one the
  // salt is another.
  // REQUIRES: 1 <= prompt_length <= tokens.size().
  Sequence(SequenceId id, std::vector<TokenId> tokens, int32_t prompt_length,
           SamplingParams sampling, StopParams stop, int32_t top_logprobs = 0,
           const Urgency& urgency = {}, std::string cache_salt = {},
           int32_t adapter = kNoAdapter);

  // From here on the output is what the guide's grammar describes. Errors as of
  // GuidedOutput::Follow, of the output that there is; InvalidArgument also
  // when nothing may follow that. The sequence is of no use then. REQUIRES: not
  // guided, not finished.
  absl::Status Guide(std::shared_ptr<OutputGuide> guide);
  bool guided() const { return guided_ != nullptr; }
  // Why what was sampled last cannot go on (GuidedOutput::Follow): the sequence
  // is not planned any more. OK when it can, or is finished.
  const absl::Status& guide_status() const { return guide_status_; }

  SequenceId id() const { return id_; }
  const std::vector<TokenId>& tokens() const { return tokens_; }
  int32_t num_tokens() const { return static_cast<int32_t>(tokens_.size()); }
  int32_t prompt_length() const { return prompt_length_; }
  int32_t num_output() const { return num_tokens() - prompt_length_; }
  // Tokens whose KV is written.
  int32_t computed() const { return computed_; }
  int32_t uncomputed() const { return num_tokens() - computed_; }
  const SamplingParams& sampling() const { return sampling_; }
  const StopParams& stop() const { return stop_; }
  int32_t top_logprobs() const { return top_logprobs_; }
  int32_t adapter() const { return adapter_; }
  const Urgency& urgency() const { return urgency_; }
  const std::string& cache_salt() const { return cache_salt_; }
  std::optional<FinishReason> finished() const { return finished_; }

  // Most tokens that the sequence will ever hold KV of: all but the last
  // output token are run.
  int32_t MaxComputed() const {
    return std::max(num_tokens(), prompt_length_ + stop_.max_output_tokens - 1);
  }

  CachedPrefix& prefix() { return prefix_; }
  const CachedPrefix& prefix() const { return prefix_; }
  // Tokens whose KV was found in the prefix cache, or loaded.
  int32_t cached() const { return prefix_.matched_tokens; }

  // With each token of the prompt from `first` on, its log-probability comes
  // out, and the `top` likeliest in its place.
  // REQUIRES: nothing is computed, 1 <= first < prompt_length.
  void WantPromptLogprobs(int32_t first, int32_t top);
  // Tokens whose KV may come from elsewhere where the prompt is computed: not
  // the last one's, as what comes after it is sampled; nor those in front of a
  // token whose log-probability is wanted.
  int32_t MaxCached() const {
    return (wants_prompt_logprobs() ? next_logprob_ : num_tokens()) - 1;
  }
  // The step has scored the targets of `planned`, the tokens of the prompt from
  // planned.first_position + 1 on: how many of the first were known already.
  int32_t CommitPromptLogprobs(const PlannedSequence& planned);

  // Whether KV of its next tokens is on its way into its blocks, so that no
  // step runs it. While it is.
  bool loading() const { return loading_; }
  void SetLoading(bool loading) { loading_ = loading; }
  // KV of the `count` tokens behind those that are computed came from where
  // prefixes are kept besides the cache.
  void AdoptCached(int32_t count) {
    CommitComputed(count);
    prefix_.matched_tokens += count;
    prefix_.loaded_tokens += count;
  }

  PooledBlocks& blocks() { return blocks_; }
  const PooledBlocks& blocks() const { return blocks_; }

  // Appends the next part of this sequence to the plan: its uncomputed tokens,
  // at most `max_tokens`; samples when that reaches the end. Targets are those
  // of its next tokens whose log-probabilities are wanted, with any between
  // these. Does not change the sequence.
  // REQUIRES: max_tokens >= 1, not finished, blocks for those tokens.
  void AppendTo(StepPlan* plan, int32_t max_tokens) const;

  // Whether the `count`-th guess, which comes true with that chance, those
  // before it included, is worth checking.
  using Worth = absl::FunctionRef<bool(int32_t count, double chance)>;
  // Guesses by the model itself, with weights of fewer bits (StepPlan::draft),
  // before AppendDrafted: it takes those that there are then, as long as
  // nothing was computed since. Begins anew: whether any may be made, of
  // `most`; not where what was said before says as much for nothing. REQUIRES:
  // one token is uncomputed.
  bool BeginGuesses(int32_t most, int32_t block_size);
  // Whether one more may be, and the chance that it comes true, with all before
  // it.
  bool MayGuess() const {
    return !guesses_end_ && NumGuesses() < most_guesses_;
  }
  double NextGuessChance() const;
  // The position of the token that it comes after.
  int32_t GuessPosition() const { return num_tokens() - 1 + NumGuesses(); }
  // Appends that token, to be sampled after. REQUIRES: MayGuess.
  void AppendGuess(StepPlan* plan) const;
  // What such a step sampled.
  void TakeGuess(const SampledToken& sampled);
  // None, not even the first, is worth a step: what was learned is forgotten in
  // time.
  void SkipGuesses() {
    if (NumGuesses() == 0) chance_of(GuessSource::kModel).Skip();
  }

  // Appends the last token and up to `most` guesses at what comes after it, as
  // far as they are worth it. Nothing is guessed of sequences whose next draw
  // depends on more than the model and a grammar (penalties, tokens that may
  // not come yet), or beyond what they may say, or have blocks for.
  // REQUIRES: as AppendTo, and one token is uncomputed.
  void AppendDrafted(StepPlan* plan, int32_t most, int32_t block_size,
                     Worth worth);
  // Whether there are such guesses at what comes after the token that a running
  // step samples, if the guess at that token comes true, too: to run it before
  // it is known would leave them unchecked. REQUIRES: as CanFollow.
  bool MayDraft(int32_t most, int32_t block_size, Worth worth);
  // Whether it has blocks for so many guesses, of those that it may come to
  // have computed, or nothing was to be guessed yet.
  bool HasRoomToGuess(int32_t most, int32_t block_size) const;
  // How many guesses of such a step came true, up to one that ends the output;
  // what is guessed next heeds it. `sampled`: of this sequence.
  int32_t JudgeDrafts(const PlannedSequence& planned,
                      absl::Span<const SampledToken> sampled);

  // Whether the token that a running step samples may be run before it is
  // known: it decides neither how the next one is drawn, or from what, nor, by
  // its number, that the sequence ends.
  // REQUIRES: one token is uncomputed, which that step runs.
  bool CanFollow() const;
  // Whether the sequence ends with that token, whatever it is.
  bool EndsNext() const { return num_output() + 1 >= stop_.max_output_tokens; }
  // Appends that next token, which follows the running step.
  // REQUIRES: CanFollow, !EndsNext, blocks for one token more than there are.
  void AppendFollowing(StepPlan* plan) const;

  // The step that ran `count` tokens of this sequence is done.
  void CommitComputed(int32_t count);
  // A token came out; ends the sequence when a stop rule, or the grammar, says
  // so.
  // REQUIRES: everything is computed, not finished.
  void CommitSampled(TokenId token);
  // KV of `count` tokens came from elsewhere (a hand-off, the prefix cache).
  void AdoptComputed(int32_t count) { CommitComputed(count); }
  // Appends a token that another worker sampled, under the same stop rules.
  void AdoptSampled(TokenId token) { CommitSampled(token); }
  // Ends the sequence from outside.
  void Finish(FinishReason reason) { finished_ = reason; }

  void CheckInvariants(int32_t block_size) const;

 private:
  // What is the same in all steps, and what they have of output that has
  // `num_output` tokens.
  PlannedSequence Planned(int32_t num_output) const;
  absl::StatusOr<GuidedOutput::Next> FollowGuide();
  bool wants_prompt_logprobs() const { return next_logprob_ < prompt_length_; }
  // Whether no draw depends on the tokens before it, but for which of them are
  // allowed.
  bool HasNoPenalties() const;
  // How many tokens may be guessed, of `most`, when `unknown` more than are
  // known were said by then.
  int32_t MostGuesses(int32_t unknown, int32_t most, int32_t block_size) const;
  enum class GuessSource { kLookedUp, kForced, kModel };
  GuessChance& chance_of(GuessSource source) {
    return chances_[static_cast<size_t>(source)];
  }
  int32_t NumGuesses() const {
    return std::max(
        0, static_cast<int32_t>(guessed_tokens_.size()) - num_tokens());
  }
  // Those of them that may be checked, of `most`.
  absl::Span<const TokenId> GuessesToCheck(int32_t most);
  // Guesses that are worth checking, by what followed before: first `unknown`
  // that are not checked. And by the grammar. Valid until the next call.
  absl::Span<const TokenId> LookUp(int32_t unknown, int32_t most, Worth worth);
  absl::Span<const TokenId> Force(int32_t most, Worth worth);
  // Those of them that the grammar may allow, with what it allows behind each.
  absl::Span<const TokenId> KeepAllowed(absl::Span<const TokenId> guess);

  const SequenceId id_;
  std::vector<TokenId> tokens_;
  const int32_t prompt_length_;
  const SamplingParams sampling_;
  const StopParams stop_;
  const int32_t top_logprobs_;
  const Urgency urgency_;
  const std::string cache_salt_;
  const int32_t adapter_;
  // The prompt's first token whose log-probability is wanted and not known;
  // prompt_length_: there is none.
  int32_t next_logprob_;
  int32_t prompt_top_logprobs_ = 0;
  int32_t computed_ = 0;
  CachedPrefix prefix_;
  PooledBlocks blocks_;
  bool loading_ = false;
  std::optional<FinishReason> finished_;
  std::unique_ptr<GuidedOutput> guided_;  // null: it may say anything
  absl::Status guide_status_;
  std::unique_ptr<Drafter> drafter_;  // once something was to be guessed
  // Of what was looked up, of what the grammar leaves no choice about, and of
  // what the model guessed.
  std::array<GuessChance, 3> chances_;
  GuessSource draft_source_ = GuessSource::kLookedUp;  // of AppendDrafted
  // All tokens and what the model guessed behind them, when it did.
  std::vector<TokenId> guessed_tokens_;
  int32_t most_guesses_ = 0;
  bool guesses_end_ = true;
  // What MayDraft expects to be sampled next.
  std::optional<TokenId> awaited_;
  std::vector<TokenId> forced_tokens_;
  // Of the last AppendDrafted.
  std::vector<TokenId> drafted_;
  std::vector<std::shared_ptr<const TokenMask>> draft_masks_;
  std::vector<const TokenMask*> allowed_after_drafts_;
};

}  // namespace baton::scheduling
