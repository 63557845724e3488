#include "scheduling/step_cost.h"

#include <algorithm>
#include <cmath>

#include "common/log.h"

namespace baton::scheduling {
namespace {

// Old steps lose half of their weight in about 70.
constexpr double kForgetting = 0.99;
// Of what nothing is known; in units of the first step's time.
constexpr double kPrior = 1e3;
// The covariance of directions that no step excites must not grow for ever.
constexpr double kMaxTrace = 1e5;
constexpr int64_t kStepsToKnow = 3;
constexpr double kErrorForgetting = 0.95;

// Brings the terms to a like size.
constexpr double kTokens = 1e2;
constexpr double kContext = 1e4;
constexpr double kSequences = 1e1;

}  // namespace

StepShape ShapeOf(const StepPlan& plan) {
  StepShape shape;
  for (const PlannedSequence& planned : plan.sequences) {
    const auto tokens = static_cast<int64_t>(planned.tokens.size());
    shape.tokens += tokens;
    shape.context_tokens += ContextTokens(planned.first_position, tokens);
    shape.sequences += planned.sample;
  }
  return shape;
}

int64_t ContextTokens(int64_t computed, int64_t tokens) {
  return tokens * computed + tokens * (tokens + 1) / 2;
}

double StepCost::Seconds(const StepShape& shape) const {
  return fixed + per_token * static_cast<double>(shape.tokens) +
         per_context_token * static_cast<double>(shape.context_tokens) +
         per_sequence * static_cast<double>(shape.sequences);
}

double StepCost::PrefillSeconds(int64_t computed, int64_t tokens,
                                int64_t chunk) const {
  CHECK_GE(chunk, 1);
  if (tokens <= 0) return 0;
  const int64_t steps = (tokens + chunk - 1) / chunk;
  return fixed * static_cast<double>(steps - 1) +
         Seconds({tokens, ContextTokens(computed, tokens), 1});
}

StepCostModel::StepCostModel() {
  for (size_t i = 0; i < kTerms; ++i) covariance_[i][i] = kPrior;
}

StepCostModel::Vector StepCostModel::Features(const StepShape& shape) {
  return {1, static_cast<double>(shape.tokens) / kTokens,
          static_cast<double>(shape.context_tokens) / kContext,
          static_cast<double>(shape.sequences) / kSequences};
}

void StepCostModel::Observe(const StepShape& shape, double seconds) {
  if (!(seconds > 0) || shape.tokens <= 0) return;
  if (cost_.known()) {
    const double miss = std::abs(seconds - cost_.Seconds(shape)) / seconds;
    error_ = error_ == 0
                 ? miss
                 : kErrorForgetting * error_ + (1 - kErrorForgetting) * miss;
  }
  if (unit_ == 0) unit_ = seconds;
  // Each step counts by its relative error: else long ones would drown those
  // that streams wait for.
  Vector x = Features(shape);
  for (double& value : x) value *= unit_ / seconds;
  Fit(x, 1);
  if (++steps_ >= kStepsToKnow) Publish();
}

void StepCostModel::Fit(const Vector& x, double y) {
  Vector px{};
  for (size_t i = 0; i < kTerms; ++i) {
    for (size_t j = 0; j < kTerms; ++j) px[i] += covariance_[i][j] * x[j];
  }
  double denominator = kForgetting;
  double predicted = 0;
  for (size_t i = 0; i < kTerms; ++i) {
    denominator += x[i] * px[i];
    predicted += weights_[i] * x[i];
  }
  double trace = 0;
  for (size_t i = 0; i < kTerms; ++i) {
    weights_[i] += px[i] / denominator * (y - predicted);
    for (size_t j = 0; j < kTerms; ++j) {
      covariance_[i][j] =
          (covariance_[i][j] - px[i] * px[j] / denominator) / kForgetting;
    }
    trace += covariance_[i][i];
  }
  if (trace <= kMaxTrace) return;
  for (Vector& row : covariance_) {
    for (double& value : row) value *= kMaxTrace / trace;
  }
}

void StepCostModel::Publish() {
  // Terms that the steps so far could not tell apart may come out below zero:
  // no work takes negative time.
  const auto seconds = [&](size_t term, double scale) {
    return std::max(0.0, weights_[term]) * unit_ / scale;
  };
  cost_ = {.fixed = seconds(0, 1),
           .per_token = seconds(1, kTokens),
           .per_context_token = seconds(2, kContext),
           .per_sequence = seconds(3, kSequences)};
}

}  // namespace baton::scheduling
