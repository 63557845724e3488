// What a client asked for, after tokenizing: immutable for the life of the
// request. Plain values; safe to read from any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/ids.h"

namespace baton::scheduling {

// How the next token is drawn from the logits. The order of application is:
// penalties, temperature, top-k, top-p, min-p, then one draw.
struct SamplingParams {
  // 0 means greedy: the highest logit after penalties (lowest id on a tie).
  float temperature = 1.0f;
  // Keep the k most likely tokens; 0 keeps all.
  int32_t top_k = 0;
  // Keep the smallest set of most likely tokens whose probability is at least
  // top_p, in (0, 1].
  float top_p = 1.0f;
  // Keep tokens at least min_p times as likely as the most likely, in [0, 1].
  float min_p = 0.0f;
  // Divides positive and multiplies negative logits of tokens seen in prompt
  // or output, > 0 (Keskar et al. 2019, CTRL); 1 is off.
  float repetition_penalty = 1.0f;
  // Subtracted once from the logit of each token that is in the output, and
  // once per occurrence in the output (OpenAI's definition), each in [-2, 2].
  float presence_penalty = 0.0f;
  float frequency_penalty = 0.0f;
  // Key of the counter-based generator: draw i of a request depends on
  // (seed, i) alone.
  uint64_t seed = 0;
};

// OK, or InvalidArgument naming the field and its range.
absl::Status Validate(const SamplingParams& params);

// When a sequence ends. Stop strings are the router's affair.
struct StopParams {
  // Most output tokens, >= 1.
  int32_t max_output_tokens = 16;
  // Tokens that end the output (and are part of it).
  std::vector<TokenId> stop_token_ids;
};

enum class FinishReason { kStop, kLength, kCancelled, kError };

// Stable lower-case name ("stop"), for labels and logs.
const char* FinishReasonName(FinishReason reason);

struct RequestSpec {
  // Unique among the requests of one router; for people and logs.
  std::string id;
  std::vector<TokenId> prompt;  // non-empty
  SamplingParams sampling;
  StopParams stop;
};

// Whether a sequence whose output now has `num_output_tokens` tokens, the last
// of them `last_token`, is finished, and why.
// REQUIRES: num_output_tokens >= 1.
std::optional<FinishReason> CheckFinished(const StopParams& stop,
                                          int32_t num_output_tokens,
                                          TokenId last_token);

}  // namespace baton::scheduling
