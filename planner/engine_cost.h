// How long an engine takes for a step: the scheduler's own linear model
// (scheduling/step_cost.h), and one term more for devices that read the KV of
// a prompt once for a whole chunk, not once for each of its tokens.
//
// Seconds; pure; any thread.
#pragma once

#include <cstdint>

#include "scheduling/step_cost.h"

namespace baton::planner {

// What a step has to do.
struct StepWork {
  // Sequences that get their next token, and the positions that these read,
  // their own included.
  int64_t streams = 0;
  int64_t stream_context = 0;
  // Of prompts: tokens, pairs of one of them and a position that it reads, and
  // how many prompts end in this step.
  int64_t prompt_tokens = 0;
  int64_t prompt_context = 0;
  int64_t prompts_done = 0;
};

struct EngineCost {
  // What placement knows of the engine, too.
  scheduling::StepCost step;
  // For each of StepWork::prompt_context.
  double per_prompt_context_token = 0;

  double Seconds(const StepWork& work) const;
};

}  // namespace baton::planner
