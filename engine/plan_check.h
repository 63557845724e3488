// What every backend asks of a step plan (engine.h), checked: breaking it is a
// bug of the caller. Pure; any thread.
#pragma once

#include "absl/types/span.h"
#include "engine/kv_layout.h"
#include "engine/lora_adapter.h"
#include "engine/model_config.h"
#include "scheduling/step_plan.h"

namespace baton::engine {

// CHECK-fails on a plan that is not well-formed for this model and pool, or has
// more guesses than the engine takes, or an adapter that it has not.
void CheckPlan(const scheduling::StepPlan& plan, const ModelConfig& config,
               const KvLayout& layout, int32_t max_drafts,
               absl::Span<const AdapterInfo> adapters);

// The same for Engine::RunAhead.
void CheckPlanAhead(const scheduling::StepPlan& plan, const ModelConfig& config,
                    const KvLayout& layout);

}  // namespace baton::engine
