// What one step runs, and what came out: the contract between the schedulers
// and the engine. A prefill chunk, a decode step and a mix of both are the same
// thing.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "common/ids.h"
#include "scheduling/request.h"
#include "scheduling/token_mask.h"

namespace baton::scheduling {

// Of a sequence that the model alone answers.
inline constexpr int32_t kNoAdapter = -1;

// One sequence's part of a step. The spans are the caller's and stay valid
// until Execute returns.
struct PlannedSequence {
  SequenceId sequence{};
  // The new tokens to run, non-empty; tokens[i] stands at position
  // first_position + i. All positions before are computed already.
  absl::Span<const TokenId> tokens;
  int32_t first_position = 0;
  // The sequence's block table: logical block -> BlockId. Covers at least the
  // positions [0, first_position + tokens.size()).
  absl::Span<const BlockId> blocks;
  // Which of the engine's adapters (Engine::adapters) computes it, with the
  // model; kNoAdapter: none. All positions before were computed with the same.
  int32_t adapter = kNoAdapter;
  // Whether the token after the last of `tokens` is to be sampled: true for a
  // decode step and for the last chunk of a prompt.
  bool sample = false;
  // Whether its token is the one that the running step samples, and not known
  // yet (Engine::RunAhead). `tokens` is then one that means nothing, and
  // `history` ends before it.
  bool follows = false;
  // How many of the last of `tokens` are guesses (Engine::max_drafts). A token
  // is sampled after the token before them, and after each of them as if it had
  // come out: until the first that did not, all are what single steps would
  // give. `history` ends before them. Only when `sample`, of a sequence with
  // one other token, whose earlier tokens decide nothing of how the next ones
  // are drawn (no penalties) but which are allowed.
  int32_t num_drafts = 0;
  // Read only when `sample`: how to sample, and all tokens of the sequence so
  // far (prompt, then output), whose last is tokens.back().
  const SamplingParams* sampling = nullptr;
  absl::Span<const TokenId> history;
  int32_t prompt_length = 0;
  // Also read only when `sample`: tokens that may not be sampled; the only ones
  // that may (null: all), one of which is not forbidden; and how many of the
  // likeliest come with the sampled one, in [0, kMaxTopLogprobs].
  absl::Span<const TokenId> forbidden;
  const TokenMask* allowed = nullptr;
  // The same of what comes after each guess, where that differs; else empty.
  absl::Span<const TokenMask* const> allowed_after_drafts;
  int32_t top_logprobs = 0;
  // For tests: whether the raw logits come back too (only when `sample`).
  bool want_logits = false;
  // At most as many as `tokens`: the log-probability of targets[i] as the token
  // after tokens[i] comes back (scoring a text, perplexity).
  absl::Span<const TokenId> targets;
  // And beside it so many of the likeliest tokens there, in
  // [0, kMaxTopLogprobs].
  int32_t target_top_logprobs = 0;

  // Of the sampled token among the output, which keys its random draw.
  int32_t sample_index() const {
    return static_cast<int32_t>(history.size()) + (follows ? 1 : 0) -
           prompt_length;
  }
  // Tokens that are sampled.
  int32_t num_samples() const { return sample ? 1 + num_drafts : 0; }
  // The only tokens that the `sample`-th of them may be; null: all.
  const TokenMask* AllowedOf(int32_t sample) const {
    return sample == 0 || allowed_after_drafts.empty()
               ? allowed
               : allowed_after_drafts[sample - 1];
  }
  // Which of them comes after tokens[token]; negative: none does.
  int32_t SampleAfter(int32_t token) const {
    return token - static_cast<int32_t>(tokens.size()) + num_samples();
  }
};

struct StepPlan {
  std::vector<PlannedSequence> sequences;
  // Whether it runs with the engine's weights of fewer bits (Engine::
  // has_draft_weights): what it samples is a guess at what a step of the others
  // gives. So are the keys and values that it writes, in their place, until
  // such a step has written them. Sequences have one token each, sampled from.
  bool draft = false;

  int64_t NumTokens() const {
    int64_t n = 0;
    for (const PlannedSequence& s : sequences) n += s.tokens.size();
    return n;
  }
  bool HasTargets() const {
    return std::any_of(
        sequences.begin(), sequences.end(),
        [](const PlannedSequence& s) { return !s.targets.empty(); });
  }
};

struct SampledToken {
  SequenceId sequence{};
  // False when the logits were not finite; `token` is then meaningless and the
  // sequence must end with an error. Others of the step are not affected.
  bool ok = true;
  // True when the logits that the host was to draw from are gone, as the device
  // had a next step by then (Engine::RunAhead): the sequence is to be run again
  // as if this step had not been, and its sample in that next step means
  // nothing.
  bool again = false;
  TokenId token = 0;
  // As TokenLogprob::logprob.
  float logprob = 0.0f;
  // The likeliest tokens of the model's own distribution, likeliest first, the
  // lower id first on a tie; as many as were asked for, or as there are.
  std::vector<TokenLogprob> top;
  // vocab_size values, when asked for.
  std::vector<float> logits;
};

struct StepResult {
  // PlannedSequence::num_samples() of each, in the order of the plan and of
  // positions.
  std::vector<SampledToken> sampled;
  // One per planned sequence with `targets`, in the order of the plan: the
  // natural logarithm of each target's probability under the model's own
  // distribution; NaN where the logits were not finite.
  std::vector<std::vector<float>> target_logprobs;
  // Of the same, as many: the likeliest tokens in the place of each target, as
  // SampledToken::top; of a sequence that asked for none, and where the logits
  // were not finite, empty.
  std::vector<std::vector<std::vector<TokenLogprob>>> target_top;
  // Of mixtures of experts, over all layers: how often the step read an
  // expert's weights, and for how many rows.
  int64_t expert_reads = 0;
  int64_t expert_rows = 0;
};

}  // namespace baton::scheduling
