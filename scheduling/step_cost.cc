#include "scheduling/step_cost.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "common/log.h"

namespace baton::scheduling {
namespace {

// A step loses half of its weight in about 35 of its own kind, or in about 1400
// of others.
constexpr double kForgetting = 0.98;
constexpr double kForgetOthers = 0.9995;
// When steps take so much longer or less than is predicted, on average and
// relative to the longer time, the machine is another: what other kinds told
// before is forgotten quickly.
constexpr double kDrifted = 0.2;
constexpr double kForgetDrifted = 0.9;
// How much staying where one is weighs against the steps, relative to them: it
// decides in directions that no step tells anything of, and in no others.
constexpr double kStay = 1e-6;
constexpr int64_t kStepsToKnow = 3;
// A step that took so many times what is predicted, or so little of it, counts
// by this much more or less only: the machine stood still, or the prediction is
// worth nothing.
constexpr double kFarOff = 4;
constexpr double kErrorForgetting = 0.95;

// Brings the terms to a like size.
constexpr double kTokens = 1e2;
constexpr double kContext = 1e4;
constexpr double kSequences = 1e1;
constexpr double kPromptContext = 1e5;

// Places of terms that are used by name.
constexpr size_t kOfContext = 2;
constexpr size_t kOfPromptContext = 4;

constexpr size_t kTerms = 5;
using Vector = std::array<double, kTerms>;
using Matrix = std::array<Vector, kTerms>;

// Solves for the terms in `set`, a bit each; the others are 0. By Cholesky's
// decomposition. REQUIRES: the matrix is positive definite.
Vector Solve(const Matrix& squares, const Vector& products, unsigned set) {
  Matrix low{};
  Vector solution{};
  for (size_t i = 0; i < kTerms; ++i) {
    if ((set >> i & 1) == 0) continue;
    for (size_t j = 0; j <= i; ++j) {
      if ((set >> j & 1) == 0) continue;
      double sum = squares[i][j];
      for (size_t k = 0; k < j; ++k) sum -= low[i][k] * low[j][k];
      // Rounding must not make it the root of less than nothing.
      low[i][j] = i == j ? std::sqrt(std::max(sum, 1e-15 * squares[i][i]))
                         : sum / low[j][j];
    }
    double sum = products[i];
    for (size_t k = 0; k < i; ++k) sum -= low[i][k] * solution[k];
    solution[i] = sum / low[i][i];
  }
  for (size_t i = kTerms; i-- > 0;) {
    if ((set >> i & 1) == 0) continue;
    double sum = solution[i];
    for (size_t k = i + 1; k < kTerms; ++k) sum -= low[k][i] * solution[k];
    solution[i] = sum / low[i][i];
  }
  return solution;
}

// The least squares among terms that are not negative: of the sets of terms
// that come out so when the others are 0, the one that fits best. There are
// 32; mostly the first one, all terms, will do.
Vector LeastSquares(const Matrix& squares, const Vector& products) {
  constexpr unsigned kAll = (1u << kTerms) - 1;
  Vector best{};
  double best_fit = 0;  // of no terms at all
  for (unsigned set = kAll; set > 0; --set) {
    const Vector solution = Solve(squares, products, set);
    if (std::any_of(solution.begin(), solution.end(),
                    [](double term) { return !(term >= 0); })) {
      continue;
    }
    if (set == kAll) return solution;
    // How much of the squares a solution takes away.
    double fit = 0;
    for (size_t i = 0; i < kTerms; ++i) fit += products[i] * solution[i];
    if (fit <= best_fit) continue;
    best = solution;
    best_fit = fit;
  }
  return best;
}

}  // namespace

StepShape& StepShape::operator+=(const StepShape& other) {
  tokens += other.tokens;
  context_tokens += other.context_tokens;
  sequences += other.sequences;
  prompt_context_tokens += other.prompt_context_tokens;
  return *this;
}

StepShape ShapeOf(const StepPlan& plan) {
  StepShape shape;
  for (const PlannedSequence& planned : plan.sequences) {
    const auto tokens = static_cast<int64_t>(planned.tokens.size());
    if (planned.num_drafts == 0) {
      shape += ChunkShape(planned.first_position, tokens);
    } else {
      shape += DraftedShape(planned.first_position, planned.num_drafts);
    }
    shape.sequences += planned.num_samples();
  }
  return shape;
}

int64_t ContextTokens(int64_t computed, int64_t tokens) {
  return tokens * computed + tokens * (tokens + 1) / 2;
}

StepShape ChunkShape(int64_t computed, int64_t tokens) {
  const int64_t context = ContextTokens(computed, tokens);
  StepShape shape = {.tokens = tokens};
  (tokens > 1 ? shape.prompt_context_tokens : shape.context_tokens) = context;
  return shape;
}

StepShape DraftedShape(int64_t computed, int64_t drafts) {
  StepShape shape = ChunkShape(computed, 1);
  shape.tokens += drafts;
  shape.prompt_context_tokens += ContextTokens(computed + 1, drafts);
  return shape;
}

double StepCost::Seconds(const StepShape& shape) const {
  return fixed + per_token * static_cast<double>(shape.tokens) +
         per_context_token * static_cast<double>(shape.context_tokens) +
         per_prompt_context_token *
             static_cast<double>(shape.prompt_context_tokens) +
         per_sequence * static_cast<double>(shape.sequences);
}

double StepCost::PrefillSeconds(int64_t computed, int64_t tokens,
                                int64_t chunk) const {
  CHECK_GE(chunk, 1);
  if (tokens <= 0) return 0;
  const int64_t steps = (tokens + chunk - 1) / chunk;
  return fixed * static_cast<double>(steps - 1) +
         Seconds(ChunkShape(computed, tokens)) + per_sequence;
}

void StepCostMean::Add(const StepCost& cost) {
  if (!cost.known()) return;
  sum_.fixed += cost.fixed;
  sum_.per_token += cost.per_token;
  sum_.per_context_token += cost.per_context_token;
  sum_.per_sequence += cost.per_sequence;
  sum_.per_prompt_context_token += cost.per_prompt_context_token;
  ++count_;
}

StepCost StepCostMean::Get() const {
  if (count_ == 0) return {};
  return {.fixed = sum_.fixed / count_,
          .per_token = sum_.per_token / count_,
          .per_context_token = sum_.per_context_token / count_,
          .per_sequence = sum_.per_sequence / count_,
          .per_prompt_context_token = sum_.per_prompt_context_token / count_};
}

StepCostModel::Vector StepCostModel::Features(const StepShape& shape) {
  return {1, static_cast<double>(shape.tokens) / kTokens,
          static_cast<double>(shape.context_tokens) / kContext,
          static_cast<double>(shape.sequences) / kSequences,
          static_cast<double>(shape.prompt_context_tokens) / kPromptContext};
}

void StepCostModel::Observe(const StepShape& shape, double seconds) {
  if (!(seconds > 0) || shape.tokens <= 0) return;
  if (cost_.known()) {
    const double predicted = cost_.Seconds(shape);
    drift_ = kErrorForgetting * drift_ + (1 - kErrorForgetting) *
                                             (seconds - predicted) /
                                             std::max(seconds, predicted);
    const double miss = std::abs(seconds - predicted) / seconds;
    error_ = error_ == 0
                 ? miss
                 : kErrorForgetting * error_ + (1 - kErrorForgetting) * miss;
  }
  if (unit_ == 0) unit_ = seconds;
  seen_context_ = seen_context_ || shape.context_tokens > 0;
  seen_prompt_context_ =
      seen_prompt_context_ || shape.prompt_context_tokens > 0;
  // Each step counts by its error relative to what is predicted: else long ones
  // would drown those that streams wait for. Relative to what it took, steps
  // that came out short by chance would count for more than those that came out
  // long, and what is predicted would be less than the mean.
  const double about = cost_.known()
                           ? std::clamp(cost_.Seconds(shape), seconds / kFarOff,
                                        seconds * kFarOff)
                           : seconds;
  Vector x = Features(shape);
  for (double& value : x) value *= unit_ / about;
  Fit(x, seconds / about, KindOf(shape));
  if (++steps_ >= kStepsToKnow) Publish();
}

size_t StepCostModel::KindOf(const StepShape& shape) {
  if (shape.tokens > shape.sequences) return 0;
  const auto power =
      static_cast<size_t>(std::bit_width(static_cast<uint64_t>(shape.tokens)));
  return std::min(power, kKinds - 1);
}

void StepCostModel::Fit(const Vector& x, double y, size_t kind) {
  const double keep_others =
      std::abs(drift_) > kDrifted ? kForgetDrifted : kForgetOthers;
  Matrix squares{};
  Vector products{};
  for (size_t k = 0; k < kKinds; ++k) {
    Evidence& evidence = evidence_[k];
    const double keep = k == kind ? kForgetting : keep_others;
    const double add = k == kind ? 1 : 0;
    for (size_t i = 0; i < kTerms; ++i) {
      for (size_t j = 0; j < kTerms; ++j) {
        evidence.squares[i][j] =
            keep * evidence.squares[i][j] + add * x[i] * x[j];
        squares[i][j] += evidence.squares[i][j];
      }
      evidence.products[i] = keep * evidence.products[i] + add * x[i] * y;
      products[i] += evidence.products[i];
    }
  }
  double trace = 0;
  for (size_t i = 0; i < kTerms; ++i) trace += squares[i][i];
  const double stay = kStay * trace / kTerms;
  for (size_t i = 0; i < kTerms; ++i) {
    squares[i][i] += stay;
    products[i] += stay * weights_[i];
  }
  weights_ = LeastSquares(squares, products);
  GuessUnseenContext();
}

void StepCostModel::GuessUnseenContext() {
  constexpr double kScale = kPromptContext / kContext;
  if (!seen_prompt_context_) {
    weights_[kOfPromptContext] = kScale * weights_[kOfContext];
  } else if (!seen_context_) {
    weights_[kOfContext] = weights_[kOfPromptContext] / kScale;
  }
}

void StepCostModel::Publish() {
  const auto seconds = [&](size_t term, double scale) {
    return weights_[term] * unit_ / scale;
  };
  cost_ = {
      .fixed = seconds(0, 1),
      .per_token = seconds(1, kTokens),
      .per_context_token = seconds(kOfContext, kContext),
      .per_sequence = seconds(3, kSequences),
      .per_prompt_context_token = seconds(kOfPromptContext, kPromptContext)};
}

}  // namespace baton::scheduling
