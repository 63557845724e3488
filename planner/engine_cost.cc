#include "planner/engine_cost.h"

namespace baton::planner {

double EngineCost::Seconds(const StepWork& work) const {
  const scheduling::StepShape shape = {work.streams + work.prompt_tokens,
                                       work.stream_context,
                                       work.streams + work.prompts_done};
  return step.Seconds(shape) +
         per_prompt_context_token * static_cast<double>(work.prompt_context);
}

}  // namespace baton::planner
