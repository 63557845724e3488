// What steps cost, before there is work: a worker runs some of its own, of
// streams and of prompts, so that the router's first placements rest on
// measurements. A decode worker that never computed a prompt would else seem to
// compute them in no time, and one that has just started would be guessed at.
// The first client also finds weights and KV memory touched.
#pragma once

#include <cstdint>

#include "absl/time/time.h"
#include "common/clock.h"
#include "engine/engine.h"
#include "scheduling/step_cost.h"

namespace baton::worker {

struct CalibrationOptions {
  // Most tokens of a step, as the loop's.
  int32_t token_budget = 512;
  // Steps that are expected to take longer are left out.
  absl::Duration longest_step = absl::Milliseconds(500);
};

// Runs some twenty or thirty steps, and tells what each shape took at best:
// other programs that start beside this one are not part of its cost. Writes to
// the first blocks of KV memory; what is sampled goes nowhere. To be called
// before the loop runs, by its thread.
scheduling::StepCostModel Calibrate(const CalibrationOptions& options,
                                    engine::Engine* engine, const Clock* clock);

}  // namespace baton::worker
