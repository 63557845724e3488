// How well a model predicts a text: perplexity, the exponential of the mean
// negative log-probability of its tokens.
//
// The text is cut into windows of `window` tokens, each `stride` after the one
// before; a window scores the tokens that no window before it scored. So every
// token but the first is scored once, from the second window on with at least
// window - stride tokens before it.
//
// Blocks; one call at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/ids.h"
#include "engine/engine.h"
#include "engine/engine_factory.h"

namespace baton::model_tools {

struct PerplexityOptions {
  int32_t window = 512;
  int32_t stride = 256;
  // Most tokens of one step.
  int32_t chunk = 2048;
};

struct ScoredWindow {
  int64_t begin = 0;  // the window's first token
  int64_t end = 0;
  int64_t first_scored = 0;  // the first token that it scores
};

// REQUIRES: 1 <= stride < window, or the text fits one window.
std::vector<ScoredWindow> CutWindows(int64_t num_tokens, int32_t window,
                                     int32_t stride);

struct Perplexity {
  int64_t scored = 0;  // tokens
  // Mean and standard error of the negative log-probability (natural), the
  // tokens taken as independent.
  double mean = 0;
  double mean_error = 0;
  // exp(mean), and its error to first order.
  double value = 0;
  double error = 0;
  // Tokens that were run, and how fast.
  int64_t run = 0;
  double seconds = 0;
};

// From the negative log-probabilities. Pure.
Perplexity SummarizeScores(absl::Span<const float> negative_logprobs);

// Scores `tokens` on an engine, with its first adapter if it has one, whose KV
// memory must hold a window. Calls
// `progress` with the tokens scored so far after each window. InvalidArgument
// for a text of less than two tokens, a token that the model lacks, or windows
// that it cannot have; Internal when a logit was not finite.
absl::StatusOr<Perplexity> MeasurePerplexity(
    engine::Engine* engine, absl::Span<const TokenId> tokens,
    const PerplexityOptions& options,
    absl::FunctionRef<void(const Perplexity& so_far)> progress);

// An engine for it, with KV memory for one window. The window is cut to what
// the model can have, the stride to less than the window. `engine_options` says
// all but the KV memory. Errors as CreateEngine.
absl::StatusOr<std::unique_ptr<engine::Engine>> CreateScoringEngine(
    engine::EngineOptions engine_options, PerplexityOptions* options);

}  // namespace baton::model_tools
