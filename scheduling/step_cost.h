// How long a worker's next step will take: a linear model of what a step has to
// do, fitted to the steps that were measured.
//
//   seconds = fixed + token * tokens + context * context_tokens
//             + sequence * sequences
//
// `tokens` are those that go through the products, `context_tokens` the pairs
// of a new token and a position that attention reads, `sequences` those that
// sample a token. The shape is that of ARCHITECTURE section 5; the fit is least
// squares with forgetting, so that it follows a machine that becomes slower,
// among terms that are not negative: no work takes less than no time. That is
// part of the fit, not put upon it: steps of two kinds (streams, and prompts of
// one length) cannot tell four terms apart, and of two that cancel out, leaving
// the negative one away would leave the other too large. What steps do not tell
// stays as it was.
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
  // Over all new tokens: the positions before and including it.
  int64_t context_tokens = 0;
  int64_t sequences = 0;
};

StepShape ShapeOf(const StepPlan& plan);

// A chunk of `tokens` prompt tokens after `computed` ones, for a StepShape.
int64_t ContextTokens(int64_t computed, int64_t tokens);

// Seconds for each of the model's terms, each >= 0.
struct StepCost {
  double fixed = 0;
  double per_token = 0;
  double per_context_token = 0;
  double per_sequence = 0;

  // Whether anything is known.
  bool known() const {
    return fixed > 0 || per_token > 0 || per_context_token > 0 ||
           per_sequence > 0;
  }

  double Seconds(const StepShape& shape) const;
  // Of a prompt of `tokens`, after `computed` that are cached, in chunks of
  // `chunk` (>= 1) that have steps of their own.
  double PrefillSeconds(int64_t computed, int64_t tokens, int64_t chunk) const;
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
  static constexpr size_t kTerms = 4;
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
  void Publish();

  double unit_ = 0;   // seconds of the first step
  Vector weights_{};  // in units
  std::array<Evidence, kKinds> evidence_{};
  int64_t steps_ = 0;
  StepCost cost_;
  double error_ = 0;
  // As error_, by sign: more than 0 when steps take longer than predicted.
  double drift_ = 0;
};

}  // namespace baton::scheduling
