// Where spans go and what is said of who sends them, from a flag and from the
// environment variables that OpenTelemetry defines
// (https://opentelemetry.io/docs/specs/otel/configuration/sdk-environment-variables/).
//
// Pure but for what the caller gives as the environment; any thread.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "router/tracing/span.h"

namespace baton::router::tracing {

struct OtlpSettings {
  // Where to post to, "http://collector:4318/v1/traces"; empty: nothing is
  // exported.
  std::string url;
  // Of each post. May hold a secret: never logged.
  std::vector<std::pair<std::string, std::string>> headers;
  // PEM file of the CAs that an https collector is checked by; empty: the
  // system's.
  std::string ca_file;
  // Who reports: service.name and so on.
  std::vector<Attribute> resource;
};

// Null when it is not set, as getenv.
using Environment = absl::FunctionRef<const char*(const char* name)>;

// `endpoint` is the base of the collector, without the path: the flag's, or
// empty for OTEL_EXPORTER_OTLP_ENDPOINT. `name` and `version` are the
// process's.
//
// InvalidArgument names the flag or variable, and never says a value that may
// be a secret.
absl::StatusOr<OtlpSettings> MakeOtlpSettings(absl::string_view endpoint,
                                              absl::string_view name,
                                              absl::string_view version,
                                              Environment environment);

// What is wrong with an endpoint; empty: nothing.
std::string CheckOtlpEndpoint(const std::string& endpoint);

}  // namespace baton::router::tracing
