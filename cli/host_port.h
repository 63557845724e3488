// "host:port" as people write it on a command line. Pure; any thread.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace baton::cli {

struct HostPort {
  std::string host;  // without the brackets of an IPv6 address
  uint16_t port = 0;
};

// InvalidArgument that quotes the text when it is not "host:port", or
// "[IPv6]:port".
absl::StatusOr<HostPort> ParseHostPort(const std::string& text);

}  // namespace baton::cli
