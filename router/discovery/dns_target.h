// "dns:NAME:PORT": the workers at all addresses of a name in DNS, on one port.
//
// Pure, any thread.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace baton::router {

struct DnsTarget {
  // As the operator wrote it.
  std::string text;
  // Absolute when it ends with a dot; otherwise as the machine's search list
  // has it.
  std::string name;
  int port = 0;
};

// Whether it is meant as one: it begins with "dns:".
bool IsDnsTarget(absl::string_view text);

// InvalidArgument says what is wrong.
absl::StatusOr<DnsTarget> ParseDnsTarget(absl::string_view text);

// "10.0.0.1:9000", "[fd00::1]:9000".
std::string AddressOf(absl::string_view ip, int port);

}  // namespace baton::router
