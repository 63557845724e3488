// Asks a server for all requests of a file, so many at once as it takes, and
// writes down their answers.
//
// What the server refuses for now (429, 502, 503), and what a connection that
// broke took along, is asked again: when the server said, else after 1, 2, 4,
// ... 60 s, of which a part is drawn. Each refusal halves how many requests are
// open, each answer lets that grow again (additive increase, multiplicative
// decrease), up to max_in_flight.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "batch/calls.h"
#include "batch/request_file.h"
#include "batch/result_file.h"
#include "common/clock.h"

namespace baton::batch {

struct BatchProgress {
  absl::Duration elapsed;
  int64_t requests = 0;  // of the file
  int64_t earlier = 0;   // answered by an earlier run
  int64_t answered = 0;  // status 200
  int64_t failed = 0;
  int64_t open = 0;
  int64_t waiting = 0;  // to be asked again
  int64_t again = 0;    // tries beyond the first, of all requests
  int64_t prompt_tokens = 0;
  int64_t output_tokens = 0;
  // Of `failed`: by status, 0 where there was no answer.
  std::map<int, int64_t> failed_by_status;
};

struct BatchOptions {
  int32_t max_in_flight = 64;
  // The run ends when nothing but refusals has come for so long: before the
  // server has said anything, and later.
  absl::Duration connect_patience = absl::Seconds(10);
  absl::Duration patience = absl::Minutes(10);
  uint64_t seed = 1;  // of the times that are drawn
  // Called about every `look`, in the caller's thread; false ends the run.
  std::function<bool(const BatchProgress&)> on_progress;
  absl::Duration look = absl::Milliseconds(200);
};

struct BatchEnd {
  BatchProgress progress;
  // Why requests are left; empty when none is.
  std::string stopped;
  bool interrupted = false;  // by on_progress
};

// Requests whose custom_id `results` has an answer for are passed over. Errors:
// those of the two files.
absl::StatusOr<BatchEnd> RunBatch(RequestFile* requests, ResultFile* results,
                                  Calls* calls, const Clock* clock,
                                  const BatchOptions& options);

}  // namespace baton::batch
