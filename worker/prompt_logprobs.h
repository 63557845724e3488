// What steps say of prompts' own tokens: from the engine to the routers.
//
// Used by the worker's loop thread only.
#pragma once

#include <cstddef>
#include <vector>

#include "scheduling/sequence.h"
#include "scheduling/step_plan.h"
#include "worker/attempt_table.h"
#include "worker/publisher.h"

namespace baton::worker {

// Tells of the part that the step's targets with number `index` are, of those
// that have any. False: the logits were not finite, and nothing was told.
bool TellPromptLogprobs(const AttemptKey& key,
                        const scheduling::PlannedSequence& planned,
                        const scheduling::StepResult& result, size_t index,
                        scheduling::Sequence* sequence, Publisher* publisher);

// Tells of all of the step whose attempts are there; returns those whose logits
// were not finite.
template <typename Attempt>
std::vector<Attempt*> TellPromptLogprobs(const scheduling::StepPlan& plan,
                                         const scheduling::StepResult& result,
                                         const AttemptTable<Attempt>& attempts,
                                         Publisher* publisher) {
  std::vector<Attempt*> broken;
  size_t index = 0;
  for (const scheduling::PlannedSequence& planned : plan.sequences) {
    if (planned.targets.empty()) continue;
    const size_t place = index++;
    Attempt* const attempt = attempts.Find(planned.sequence);
    if (attempt == nullptr) continue;
    if (!TellPromptLogprobs(attempt->key, planned, result, place,
                            attempt->sequence.get(), publisher)) {
      broken.push_back(attempt);
    }
  }
  return broken;
}

}  // namespace baton::worker
