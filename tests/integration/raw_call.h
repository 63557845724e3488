// Calls of services whose generated stubs this system does not ship (health,
// reflection): request and response as encoded messages.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace baton::test {

// Sends one encoded message to "/package.Service/Method" at "host:port", says
// that no more will come, and returns the first encoded message of the answer.
// Serves unary and bidirectional methods alike. Bounded by a deadline.
absl::StatusOr<std::string> RawCall(const std::string& address,
                                    const std::string& method,
                                    const std::string& request);

// Body of GET `path` over HTTP/1.1 at "host:port", when the status is 200.
absl::StatusOr<std::string> HttpGet(const std::string& address,
                                    const std::string& path);

// Value of the first sample of a metric in the text of /metrics; -1: none.
double MetricValue(const std::string& text, const std::string& name);

// The sum over all its samples whose labels contain `labels`; 0: there is none.
double MetricSum(const std::string& text, const std::string& name,
                 const std::string& labels = "");

}  // namespace baton::test
