// The line that a worker logs of each attempt when it is over, with its place
// in the request's trace:
//
//   the client's span > the router's > this worker's, and the hand-off's
//
// Span ids follow from the router's span, the part and the attempt's number
// (PartSpan), so that both workers know the hand-off's without telling it.
//
// Used by the worker's loop thread only.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "baton/v1/worker.pb.h"
#include "common/trace_context.h"
#include "kv_transfer/handoff.h"

namespace baton::worker {

// How the log calls an attempt.
struct AttemptName {
  std::string request_id;
  uint64_t attempt = 0;
  // The router's span; nothing when there is none.
  std::optional<TraceContext> parent;

  // For the lines of the hand-off.
  kv_transfer::TransferOwner Owner() const;
};

// A traceparent that is none is left out.
AttemptName MakeAttemptName(const v1::SequenceSpec& spec, uint64_t attempt);

struct AttemptEnd {
  // outcome.ok() is whether it ended well; its durations and counts are logged
  // where they are not 0.
  const v1::Outcome& outcome;
  // Why not; empty: the router wanted no more, or is gone.
  absl::string_view error;
  // Tokens that it began with, and that were sampled here.
  int32_t tokens = 0;
  int32_t sampled = 0;
  // From the assignment to the end; and to when KV had landed.
  absl::Duration total;
  std::optional<absl::Duration> landed;
};

// "prefill ended", "decode ended".
void LogAttemptEnd(absl::string_view part, const AttemptName& name,
                   const AttemptEnd& end);

}  // namespace baton::worker
