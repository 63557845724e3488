// The target of a request line: "/v1/models?x=1" and its kin. Pure; any thread.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace baton::router::http {

struct RequestTarget {
  std::string path;   // percent-decoded
  std::string query;  // as it came, without "?"
};

// Takes "/path?query", "http://host/path?query" (of which the host is dropped)
// and "*". InvalidArgument for anything else, a broken percent escape, or an
// escaped NUL.
absl::StatusOr<RequestTarget> ParseRequestTarget(absl::string_view target);

}  // namespace baton::router::http
