#include "scheduling/step_budget.h"

#include <algorithm>

#include "common/log.h"

namespace baton::scheduling {
namespace {

constexpr double kShareOfTarget = 0.9;
// Where a stream should be, when it could have had a token in each target's
// time: a little is kept for what lies between the worker and the client.
constexpr double kPaceOfTarget = 0.95;
// Who is further behind than so many of its targets does not catch up.
constexpr double kMostTargetsBehind = 2;
// How much more a step counts for those that wait than for those that end:
// others are going to come.
constexpr double kWeightOfWaiting = 2;
// StepCostModel has forgotten nearly all of a step after so many more.
constexpr int32_t kStepsToForget = 300;

}  // namespace

double StepBudgetSeconds(double itl_target_seconds) {
  return kShareOfTarget * itl_target_seconds;
}

double SecondsBehind(double itl_target_seconds, double elapsed_seconds,
                     int64_t tokens) {
  return elapsed_seconds -
         kPaceOfTarget * itl_target_seconds * static_cast<double>(tokens);
}

double CatchUpBudgetSeconds(double itl_target_seconds, double behind_seconds) {
  CHECK_GT(itl_target_seconds, 0);
  // Not 0, which would be no bound.
  const double least = 1e-3 * itl_target_seconds;
  return std::clamp(kPaceOfTarget * itl_target_seconds - behind_seconds, least,
                    StepBudgetSeconds(itl_target_seconds));
}

bool IsLost(double itl_target_seconds, double behind_seconds) {
  return behind_seconds > kMostTargetsBehind * itl_target_seconds;
}

bool PaysToJoin(const StepCost& cost, const StepShape& chunk, int32_t ending,
                int32_t waiting) {
  if (!cost.known()) return true;
  const double seconds = cost.Seconds(chunk) - cost.fixed;
  return kWeightOfWaiting * cost.fixed * waiting >= seconds * ending;
}

int32_t MaxChunkTokens(const StepCost& cost, const StepShape& beside,
                       double budget_seconds, int64_t computed, int32_t most) {
  CHECK(cost.known());
  CHECK_GE(most, 0);
  const auto fits = [&](int32_t tokens) {
    StepShape step = beside;
    step += ChunkShape(computed, tokens);
    ++step.sequences;
    return cost.Seconds(step) <= budget_seconds;
  };
  // One token alone reads as a stream does, which may cost more than two of a
  // prompt: it is tried by itself.
  if (most > 0 && fits(most)) return most;
  if (most <= 2 || !fits(2)) return most > 0 && fits(1) ? 1 : 0;
  // From two on, the time grows with the tokens: [low] fits, [high] does not.
  int32_t low = 2;
  int32_t high = most;
  while (high - low > 1) {
    const int32_t middle = low + (high - low) / 2;
    (fits(middle) ? low : high) = middle;
  }
  return low;
}

ChunkRamp::ChunkRamp(int32_t first, int32_t most)
    : first_(first), most_(most), limit_(first) {
  CHECK_GE(first, 1);
  CHECK_GE(most, first);
}

void ChunkRamp::Planned(int32_t prompt_tokens) {
  if (prompt_tokens == 0) {
    if (steps_without_ < kStepsToForget) ++steps_without_;
    if (steps_without_ == kStepsToForget) limit_ = first_;
    return;
  }
  steps_without_ = 0;
  // No overflow: a step has at most `most` tokens, which is far from it.
  limit_ = std::clamp(2 * prompt_tokens, limit_, most_);
}

}  // namespace baton::scheduling
