// Guesses at what streams say next by the model itself, with weights of fewer
// bits: short steps before the one that checks them, on the same KV. What they
// write there, that one writes again.
#include <algorithm>

#include "absl/time/time.h"
#include "decode_worker/decode_loop.h"

namespace baton::decode_worker {
namespace {

using scheduling::StepCost;
using scheduling::StepPlan;
using scheduling::StepResult;

// The first of them touch memory that none had touched: what such a step costs
// is not believed before there were some.
constexpr int kLearningSteps = 8;

// Steps in a row that nothing was guessed for, before it is tried again, as
// what it costs may have changed, or was never so: at first, and at last.
constexpr int kFirstRetry = 20;
constexpr int kLastRetry = 640;

}  // namespace

void DecodeLoop::Guess(const scheduling::StepOutlook& outlook) {
  scheduler_.BeginGuesses(outlook);
  const bool tries_again = ++steps_without_guesses_ > retry_after_;
  const bool learns = draft_steps_ < kLearningSteps || tries_again;
  if (tries_again) retry_after_ = std::min(2 * retry_after_, kLastRetry);
  // Who comes meanwhile waits for the step that checks what there is.
  while (inbox_->size() == 0) {
    const StepPlan plan = scheduler_.NextGuesses(
        outlook, learns ? StepCost() : draft_cost_.cost());
    if (plan.sequences.empty()) return;
    const absl::Time started = clock_->Now();
    const StepResult result = engine_->Execute(plan, [](int32_t) {});
    scheduler_.TakeGuesses(result);
    const absl::Duration took = clock_->Now() - started;
    const double seconds = absl::ToDoubleSeconds(took);
    draft_cost_.Observe(scheduling::ShapeOf(plan), seconds);
    metrics_->draft_step_seconds->Observe(seconds);
    pace_.Apart(took);
    ++draft_steps_;
    steps_without_guesses_ = 0;
    // One at a time, as long as it costs nobody knows what.
    if (learns) return;
    retry_after_ = kFirstRetry;
  }
}

}  // namespace baton::decode_worker
