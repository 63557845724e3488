#include "worker/prompt_logprobs.h"

#include <algorithm>
#include <cmath>

#include "absl/types/span.h"

namespace baton::worker {

bool TellPromptLogprobs(const AttemptKey& key,
                        const scheduling::PlannedSequence& planned,
                        const scheduling::StepResult& result, size_t index,
                        scheduling::Sequence* sequence, Publisher* publisher) {
  const absl::Span<const float> logprobs = result.target_logprobs[index];
  if (std::any_of(logprobs.begin(), logprobs.end(),
                  [](float logprob) { return std::isnan(logprob); })) {
    return false;
  }
  const int32_t known = sequence->CommitPromptLogprobs(planned);
  if (known == static_cast<int32_t>(logprobs.size())) return true;
  absl::Span<const std::vector<scheduling::TokenLogprob>> top =
      result.target_top[index];
  if (!top.empty()) top.remove_prefix(known);
  publisher->AddPromptLogprobs(key, planned.first_position + 1 + known,
                               logprobs.subspan(known), top);
  return true;
}

}  // namespace baton::worker
