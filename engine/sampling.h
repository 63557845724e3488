// From logits to a token: bias, penalties, temperature, truncation and one
// random draw, or the highest logit; and the likeliest tokens beside it. Pure;
// any thread. The same code runs on every CPU, so equal logits give equal
// tokens everywhere.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "scheduling/request.h"
#include "scheduling/step_plan.h"
#include "scheduling/token_mask.h"

namespace baton::engine {

// What a draw is given besides its parameters.
struct SampleOptions {
  // Tokens that must not come out. Not the whole vocabulary.
  absl::Span<const TokenId> forbidden;
  // The only ones that may; null: all. One of them is not forbidden.
  const scheduling::TokenMask* allowed = nullptr;
  // How many of the likeliest tokens to report. Each costs little, the first
  // one a pass over the logits.
  int32_t top_logprobs = 0;
};

// Draws token `token_index` of the output (0 is the first) from `logits`, one
// per entry of the vocabulary; they are overwritten. `history` holds the tokens
// so far, of which the first `prompt_length` are the prompt. The order is:
//
//   1. the bias is added
//   2. repetition penalty (prompt and output), presence and frequency penalty
//      (output)
//   3. forbidden tokens, and those that are not allowed, get no probability
//   4. temperature 0: the highest logit, the lowest id on a tie. Done.
//   5. temperature; top-k; top-p of what top-k left; min-p of what top-p left.
//      Tokens with equal logits rank by id, the lower one first.
//   6. one draw from what is left, keyed by (params.seed, token_index).
//
// Log-probabilities are those before step 1. Sets ok, token, logprob and top of
// the result, and nothing else. A logit that is NaN or infinite makes ok false.
// REQUIRES: logits non-empty, Validate(params) is OK, tokens of `history`, of
// the bias and of `options` are in [0, logits.size()),
// 0 <= prompt_length <= history.size(), top_logprobs >= 0.
scheduling::SampledToken Sample(absl::Span<float> logits,
                                const scheduling::SamplingParams& params,
                                absl::Span<const TokenId> history,
                                int32_t prompt_length, uint64_t token_index,
                                const SampleOptions& options = {});

// The natural logarithm of the probability that the model's own distribution
// gives `token`; NaN when a logit is not finite. With `top`, which is then
// empty, puts the `top_logprobs` likeliest tokens there, as SampledToken::top.
// REQUIRES: 0 <= token < logits.size(), top_logprobs >= 0.
float LogProbability(absl::Span<const float> logits, TokenId token,
                     int32_t top_logprobs = 0,
                     std::vector<scheduling::TokenLogprob>* top = nullptr);

}  // namespace baton::engine
