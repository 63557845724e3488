// One request of a workload: when it comes and how large it is.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/time/time.h"

namespace baton::workload {

struct PlannedRequest {
  // From the start of the workload.
  absl::Duration at;
  int32_t prompt_tokens = 0;  // >= 1
  int32_t output_tokens = 0;  // >= 1
  // The prompt's content, where a trace tells it: prompts whose lists begin
  // alike begin with the same tokens, `prefix_block` for each entry (the last
  // one may be cut off). Empty: shares nothing with any other.
  std::vector<uint64_t> prefix;
  int32_t prefix_block = 0;
};

}  // namespace baton::workload
