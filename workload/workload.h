// A workload: requests in the order of their times.
//
// Pure; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/time/time.h"
#include "workload/arrivals.h"
#include "workload/planned_request.h"

namespace baton::workload {

// A length of prompts or outputs: uniformly in [least, most].
struct LengthRange {
  int32_t least = 1;
  int32_t most = 1;
};

struct SyntheticOptions {
  ArrivalOptions arrivals;
  LengthRange prompt;
  LengthRange output;
  // Every prompt begins with the same so many tokens (a system prompt).
  int32_t shared_prefix = 0;
  absl::Duration duration;
  uint64_t seed = 1;
};

// What comes before `duration` is over. The same options give the same
// requests.
std::vector<PlannedRequest> MakeSynthetic(const SyntheticOptions& options);

struct Fitting {
  // Times are multiplied by it: 0.5 is twice as fast. > 0.
  double time_scale = 1;
  // Prompts, outputs and prefix blocks are multiplied by it; at least 1. > 0.
  double length_scale = 1;
  // Later requests (by their scaled times), and all after so many, are left
  // out.
  absl::Duration duration = absl::InfiniteDuration();
  size_t max_requests = SIZE_MAX;
  // Requests that together would be longer are left out: prompt and output.
  int32_t max_context = INT32_MAX;
};

struct Fitted {
  std::vector<PlannedRequest> requests;
  size_t too_long = 0;  // left out for their length
};

Fitted Fit(const std::vector<PlannedRequest>& requests, const Fitting& fitting);

// The same requests at other times: `rate` per second on average, in order.
// For the search for the rate that a server can carry.
std::vector<PlannedRequest> AtRate(const std::vector<PlannedRequest>& requests,
                                   double rate);

}  // namespace baton::workload
