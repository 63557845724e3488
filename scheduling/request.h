// What a client asked for, after tokenizing: immutable for the life of the
// request. Plain values; safe to read from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/ids.h"
#include "scheduling/grammar.h"
#include "scheduling/token_mask.h"

namespace baton::scheduling {

// Most tokens with a bias of their own, and the largest bias.
inline constexpr int32_t kMaxLogitBias = 1024;
inline constexpr float kMaxBias = 100.0f;

// Most of the likeliest tokens that are reported with each token.
inline constexpr int32_t kMaxTopLogprobs = 20;

// Most log-probabilities that come of a prompt's own tokens, those of the
// likeliest in their places included.
inline constexpr int64_t kMaxPromptLogprobs = 262144;

// What is added to the logit of a token: about -100 forbids it, 100 forces it.
struct LogitBias {
  TokenId token = 0;
  float bias = 0.0f;

  friend bool operator==(const LogitBias&, const LogitBias&) = default;
};

// A token and the natural logarithm of its probability under the model's own
// distribution (temperature 1, no bias, no penalties, no truncation).
struct TokenLogprob {
  TokenId token = 0;
  float logprob = 0.0f;

  friend bool operator==(const TokenLogprob&, const TokenLogprob&) = default;
};

// How the next token is drawn from the logits. The order of application is:
// bias, penalties, what is allowed, temperature, top-k, top-p, min-p, then one
// draw.
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
  // Sorted by token, each once; at most kMaxLogitBias, each within kMaxBias of
  // zero.
  std::vector<LogitBias> logit_bias;
  // The tokens that may come out; null: all.
  std::shared_ptr<const TokenMask> allowed;
  // Key of the counter-based generator: draw i of a request depends on
  // (seed, i) alone.
  uint64_t seed = 0;
};

// OK, or InvalidArgument naming the field and its range. That tokens are of the
// model's vocabulary is for the caller to see to.
absl::Status Validate(const SamplingParams& params);

// When a sequence ends. Stop strings are the router's affair.
struct StopParams {
  // Most output tokens, >= 1.
  int32_t max_output_tokens = 16;
  // Tokens that end the output (and are part of it).
  std::vector<TokenId> stop_token_ids;
  // While the output has fewer tokens, none of stop_token_ids is sampled, as if
  // the model gave them no probability. In [0, max_output_tokens].
  int32_t min_output_tokens = 0;
};

// OK, or InvalidArgument where a draw would have no token to choose from: those
// that are allowed all end the output, which it may not do yet.
absl::Status Validate(const SamplingParams& params, const StopParams& stop);

enum class FinishReason { kStop, kLength, kCancelled, kError };

// Stable lower-case name ("stop"), for labels and logs.
const char* FinishReasonName(FinishReason reason);

// Who waits for the answer: someone for each token, or nobody.
enum class RequestClass { kInteractive, kBatch };

// Stable lower-case name ("interactive"), for labels and logs.
const char* RequestClassName(RequestClass request_class);

// Bounds of what a client may ask for.
inline constexpr int32_t kMaxPriority = 100;
inline constexpr uint32_t kMaxTargetMs = 24 * 3600 * 1000;

// The longest salt of a sequence: what a client may give, and what a router
// puts before it (router/prefix_salt.h).
inline constexpr size_t kMaxCacheSaltBytes = 512;

// How much a request matters before others, and by when. Never a reason to give
// another answer.
struct Urgency {
  RequestClass request_class = RequestClass::kInteractive;
  // Among those of a class, larger goes first, within kMaxPriority of zero.
  int32_t priority = 0;
  // What is left for the first token when the worker hears of the request, and
  // between tokens, in seconds; 0: no target.
  double ttft_target_seconds = 0;
  double itl_target_seconds = 0;
};

struct RequestSpec {
  // Unique among the requests of one router; for people and logs.
  std::string id;
  std::vector<TokenId> prompt;  // non-empty
  SamplingParams sampling;
  StopParams stop;
  // What the answer may be; null: anything.
  std::shared_ptr<const Grammar> grammar;
  // How many of the likeliest tokens come with each token, in
  // [0, kMaxTopLogprobs].
  int32_t top_logprobs = 0;
  // The same of each token of the prompt but the first; nothing: no
  // log-probabilities of these.
  std::optional<int32_t> prompt_logprobs;
  // W3C trace context of the request's work; empty: none.
  std::string traceparent;
  // The identity of the LoRA adapter that computes it with the model; empty:
  // the model alone.
  std::string adapter;
};

// Whether a sequence whose output now has `num_output_tokens` tokens, the last
// of them `last_token`, is finished, and why. A stop token ends it only where
// one could be sampled: behind the first min_output_tokens.
// REQUIRES: num_output_tokens >= 1.
std::optional<FinishReason> CheckFinished(const StopParams& stop,
                                          int32_t num_output_tokens,
                                          TokenId last_token);

}  // namespace baton::scheduling
