// OTLP, the protocol by which OpenTelemetry collectors are given spans, in its
// JSON form (https://opentelemetry.io/docs/specs/otlp/): ids are hexadecimal,
// 64-bit numbers are strings, enums are numbers, names are in camelCase.
//
// Pure; any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "router/tracing/span.h"

namespace baton::router::tracing {

// An ExportTraceServiceRequest. `resource` says who reports. Texts that are no
// UTF-8 have U+FFFD where they are not.
std::string OtlpTraceRequest(const std::vector<Attribute>& resource,
                             absl::Span<const Span> spans);

// What a collector said of spans that it took: how many it threw away all the
// same, and why. 0 for an answer that says nothing of that, or is no JSON.
struct PartialSuccess {
  int64_t rejected_spans = 0;
  std::string message;
};
PartialSuccess ParseTraceResponse(absl::string_view body);

}  // namespace baton::router::tracing
