// From logits to a token: penalties, temperature, truncation and one random
// draw, or the highest logit. Pure; any thread. The same code runs on every
// CPU, so equal logits give equal tokens everywhere.
#pragma once

#include <cstdint>

#include "absl/types/span.h"
#include "scheduling/request.h"
#include "scheduling/step_plan.h"

namespace baton::engine {

// Draws token `token_index` of the output (0 is the first) from `logits`, one
// per entry of the vocabulary; they are overwritten. `history` holds the tokens
// so far, of which the first `prompt_length` are the prompt. The order is:
//
//   1. repetition penalty (prompt and output), presence and frequency penalty
//      (output)
//   2. temperature 0: the highest logit, the lowest id on a tie. Done.
//   3. temperature; top-k; top-p of what top-k left; min-p of what top-p left.
//      Tokens with equal logits rank by id, the lower one first.
//   4. one draw from what is left, keyed by (params.seed, token_index).
//
// Sets ok, token and logprob of the result, and nothing else. A logit that is
// NaN or infinite makes ok false.
// REQUIRES: logits non-empty, Validate(params) is OK, tokens of `history` are
// < logits.size(), 0 <= prompt_length <= history.size().
scheduling::SampledToken Sample(absl::Span<float> logits,
                                const scheduling::SamplingParams& params,
                                absl::Span<const TokenId> history,
                                int32_t prompt_length, uint64_t token_index);

// The natural logarithm of the probability that the model's own distribution
// gives `token`; NaN when a logit is not finite.
// REQUIRES: 0 <= token < logits.size().
float LogProbability(absl::Span<const float> logits, TokenId token);

}  // namespace baton::engine
