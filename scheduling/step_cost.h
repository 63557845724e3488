// How long a worker's next step will take: a linear model of what a step has to
// do, fitted to the steps that were measured.
//
//   seconds = fixed + token * tokens + context * context_tokens
//             + prompt_context * prompt_context_tokens + sequence * sequences
//
// `tokens` are those that go through the products, `context_tokens` the pairs
// of a new token and a position that attention reads, where a sequence has one
// new token, `prompt_context_tokens` the same where it has more, `sequences`
// the tokens that are sampled. The two contexts are apart because a stream
// reads its KV from memory for one token, and a chunk of a prompt once for all
// of its tokens: on an H200, a pair costs a prompt a twentieth (docs/adr/0039).
// The fit is least squares with forgetting, so that it follows a machine that
// becomes slower, and of errors relative to what is predicted, so that it is
// the mean of steps that differ by chance; among terms that are not negative:
// no work takes less than no time. That is part of the fit, not put upon it:
// steps of two kinds (streams, and prompts of one length) cannot tell five
// terms apart, and of two that cancel out, leaving the negative one away would
// leave the other too large. What steps do not tell stays as it was; of the two
// contexts, one that no step had yet is taken to be as the other.
//
// Steps of different kinds (with prompts; of one stream, of two or three, of
// four to seven, ...) are forgotten apart, each when others of their kind come:
// a worker takes hundreds of steps of few streams between two prompts or two
// bursts, and what the noise of those says of a prompt or of many streams is
// worth nothing beside one that was measured.
//
// Pure: the caller measures. One thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "scheduling/step_plan.h"

namespace baton::scheduling {

// What a step has to do.
struct StepShape {
  int64_t tokens = 0;
  // Over the new tokens of sequences that have one: the positions before and
  // including it.
  int64_t context_tokens = 0;
  // Tokens that are sampled: one of each that is at its end, more with guesses.
  int64_t sequences = 0;
  // As context_tokens, of sequences that have more new tokens: prompts.
  int64_t prompt_context_tokens = 0;

  StepShape& operator+=(const StepShape& other);
};

StepShape ShapeOf(const StepPlan& plan);

// The positions that `tokens` tokens after `computed` ones read, all together.
int64_t ContextTokens(int64_t computed, int64_t tokens);

// Of `tokens` prompt tokens after `computed` ones, of which none is sampled
// from.
StepShape ChunkShape(int64_t computed, int64_t tokens);

// Of a stream's token after `computed` ones, and of `drafts` guesses behind it,
// which read the KV that it brought from memory. What is sampled is not in it.
StepShape DraftedShape(int64_t computed, int64_t drafts);

// Seconds for each of the model's terms, each >= 0.
struct StepCost {
  double fixed = 0;
  double per_token = 0;
  double per_context_token = 0;
  double per_sequence = 0;
  double per_prompt_context_token = 0;

  // Whether anything is known.
  bool known() const {
    return fixed > 0 || per_token > 0 || per_context_token > 0 ||
           per_sequence > 0 || per_prompt_context_token > 0;
  }

  double Seconds(const StepShape& shape) const;
  // Of a prompt of `tokens`, after `computed` that are cached, in chunks of
  // `chunk` (>= 1) that have steps of their own.
  double PrefillSeconds(int64_t computed, int64_t tokens, int64_t chunk) const;
};

// The mean of what some workers' steps cost.
class StepCostMean final {
 public:
  // Ignored when it is not known().
  void Add(const StepCost& cost);
  // Not known() without any.
  StepCost Get() const;

 private:
  StepCost sum_;
  double count_ = 0;
};

class StepCostModel final {
 public:
  // A step took so long.
  void Observe(const StepShape& shape, double seconds);

  // As fitted so far; not known() before there were some steps.
  const StepCost& cost() const { return cost_; }

  // How far the last steps were from what was predicted for them before they
  // ran: the mean of |measured - predicted| / measured, with forgetting. 0
  // while nothing was predicted.
  double error() const { return error_; }

 private:
  static constexpr size_t kTerms = 5;
  // Prompts, and streams by the power of two: up to 1, 3, 7, ..., 127, more.
  static constexpr size_t kKinds = 9;
  using Vector = std::array<double, kTerms>;

  using Matrix = std::array<Vector, kTerms>;

  static Vector Features(const StepShape& shape);
  // What steps of one kind have told: sums over them, with forgetting, of x x^T
  // and x y.
  struct Evidence {
    Matrix squares{};
    Vector products{};
  };

  static size_t KindOf(const StepShape& shape);
  void Fit(const Vector& x, double y, size_t kind);
  // A context that no step had yet is as the other.
  void GuessUnseenContext();
  void Publish();

  double unit_ = 0;   // seconds of the first step
  Vector weights_{};  // in units
  std::array<Evidence, kKinds> evidence_{};
  int64_t steps_ = 0;
  bool seen_context_ = false;
  bool seen_prompt_context_ = false;
  StepCost cost_;
  double error_ = 0;
  // As error_, by sign: more than 0 when steps take longer than predicted.
  double drift_ = 0;
};

}  // namespace baton::scheduling
