// W3C trace context (https://www.w3.org/TR/trace-context/, Recommendation): one
// trace id for all that is done for a request, and a span id for each part.
//
// A caller sends the header `traceparent`; what we do for it is a new span in
// its trace. A header that is missing or invalid begins a new trace.
// `tracestate` is for other tracing systems: we have none to add to it, and
// pass it to nobody.
//
// Pure: random numbers come from the caller. Any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"

namespace baton {

struct TraceContext {
  // The trace id is these 128 bits; not all 0.
  uint64_t trace_high = 0;
  uint64_t trace_low = 0;
  // Not 0.
  uint64_t span = 0;
  // The caller may have recorded its part.
  bool sampled = false;

  friend bool operator==(const TraceContext&, const TraceContext&) = default;
};

// Any 64 random bits.
using RandomDraw = absl::FunctionRef<uint64_t()>;

// Nothing when the header is invalid. Versions after 00 are read as 00, as far
// as that goes, as the specification asks.
std::optional<TraceContext> ParseTraceparent(absl::string_view header);

// Version 00. Flags that it does not define are 0.
std::string FormatTraceparent(const TraceContext& context);

// A new trace.
TraceContext NewTrace(RandomDraw draw);

// A new span in the trace of `parent`.
TraceContext ChildSpan(const TraceContext& parent, RandomDraw draw);

// The span of what we do for a caller that sent `header`: in its trace, or in a
// new one when the header is empty or invalid.
struct StartedSpan {
  TraceContext context;
  // The caller's span; 0: none.
  uint64_t parent = 0;
};
StartedSpan StartSpan(absl::string_view header, RandomDraw draw);

// Whether this trace is among the recorded ones, when a share of `ratio` of all
// traces is: the same answer for a trace wherever it is asked, with the last 56
// bits of its id as the random number (W3C Trace Context Level 2).
bool IsSampled(const TraceContext& context, double ratio);

// The span of one part of what `parent` does: the same for the same part, so
// that no two processes need to agree on it. `part` and `number` tell the parts
// of a parent apart.
TraceContext PartSpan(const TraceContext& parent, absl::string_view part,
                      uint64_t number);

// 32 and 16 lower-case hexadecimal digits.
std::string TraceIdHex(const TraceContext& context);
std::string SpanIdHex(uint64_t span);

}  // namespace baton
