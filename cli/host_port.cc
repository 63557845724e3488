#include "cli/host_port.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace baton::cli {

absl::StatusOr<HostPort> ParseHostPort(const std::string& text) {
  const auto error = [&](absl::string_view why) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", text, "' is not HOST:PORT: ", why));
  };
  const size_t colon = text.rfind(':');
  if (colon == std::string::npos) return error("it has no port");
  absl::string_view host = absl::string_view(text).substr(0, colon);
  const absl::string_view digits = absl::string_view(text).substr(colon + 1);
  const bool bracketed =
      host.size() >= 2 && host.front() == '[' && host.back() == ']';
  if (bracketed) {
    host = host.substr(1, host.size() - 2);
  } else if (host.find(':') != absl::string_view::npos) {
    return error("write an IPv6 address in brackets");
  }
  if (host.empty()) return error("it has no host");
  uint32_t port = 0;
  // SimpleAtoi would take a sign and spaces.
  const bool all_digits =
      !digits.empty() &&
      digits.find_first_not_of("0123456789") == absl::string_view::npos;
  if (!all_digits || !absl::SimpleAtoi(digits, &port) || port > 65535) {
    return error("the port is a number up to 65535");
  }
  return HostPort{std::string(host), static_cast<uint16_t>(port)};
}

}  // namespace baton::cli
