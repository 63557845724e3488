// Sends a workload to a target and writes down what comes of it.
//
// Open loop: each request goes out at its time, whatever became of those
// before it, as independent clients do. Closed loop: a fixed number at a time,
// the next one when another ends.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/time/time.h"
#include "load_generator/record.h"
#include "load_generator/target.h"
#include "workload/planned_request.h"
#include "workload/prompt_tokens.h"

namespace baton::load_generator {

// Asked by the runner's thread now and then.
struct Progress {
  absl::Duration elapsed;
  int64_t planned = 0;
  int64_t sent = 0;
  int64_t open = 0;
  int64_t finished = 0;
  int64_t not_finished = 0;  // rejected, failed, timed out
  int64_t output_events = 0;
};

struct RunOptions {
  // 0: open loop.
  int32_t concurrency = 0;
  // Of each request.
  absl::Duration timeout = absl::Minutes(10);
  uint64_t seed = 1;
  // Prompts as text, for servers that take no token ids.
  bool text = false;
  workload::TokenRange token_range;
  // Called about once a second; false ends the run: nothing more is sent, and
  // what is open is not waited for (it counts as failed).
  std::function<bool(const Progress&)> on_progress;
};

// Returns when all requests have ended: at most the workload's time and the
// timeout after it. Records are in the workload's order; requests that were not
// sent have none.
std::vector<RequestRecord> RunWorkload(
    const std::vector<workload::PlannedRequest>& requests, Target* target,
    const RunOptions& options);

}  // namespace baton::load_generator
