#include "router/discovery/dns_target.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace baton::router {
namespace {

constexpr char kScheme[] = "dns:";
// Of RFC 1035: 255 bytes on the wire.
constexpr size_t kMaxDnsNameBytes = 253;
// Of a target in an error.
constexpr size_t kMaxQuoted = 300;

bool IsName(absl::string_view name) {
  absl::ConsumeSuffix(&name, ".");
  // A number would be an address, which nobody has to look up.
  const bool number = std::all_of(name.begin(), name.end(), [](char c) {
    return absl::ascii_isdigit(c) || c == '.';
  });
  return !name.empty() && !number && name.size() <= kMaxDnsNameBytes &&
         name.front() != '.' && !absl::StrContains(name, "..") &&
         std::all_of(name.begin(), name.end(), [](char c) {
           return absl::ascii_isalnum(c) || c == '.' || c == '-' || c == '_';
         });
}

}  // namespace

bool IsDnsTarget(absl::string_view text) {
  return absl::StartsWith(text, kScheme);
}

absl::StatusOr<DnsTarget> ParseDnsTarget(absl::string_view text) {
  const auto wrong = [&](absl::string_view what) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", absl::CHexEscape(text.substr(0, kMaxQuoted)),
                     "\" is not dns:NAME:PORT: ", what));
  };
  absl::string_view rest = text;
  if (!absl::ConsumePrefix(&rest, kScheme)) return wrong("no dns:");
  const size_t colon = rest.rfind(':');
  if (colon == absl::string_view::npos) return wrong("it has no port");
  DnsTarget target;
  target.text = std::string(text);
  target.name = std::string(rest.substr(0, colon));
  const absl::string_view port = rest.substr(colon + 1);
  if (port.empty() || port.size() > 5 ||
      port.find_first_not_of("0123456789") != absl::string_view::npos ||
      !absl::SimpleAtoi(port, &target.port) || target.port < 1 ||
      target.port > 65535) {
    return wrong("the port must be a number from 1 to 65535");
  }
  if (!IsName(target.name)) return wrong("the name is none of DNS");
  return target;
}

std::string AddressOf(absl::string_view ip, int port) {
  return absl::StrContains(ip, ":") ? absl::StrCat("[", ip, "]:", port)
                                    : absl::StrCat(ip, ":", port);
}

}  // namespace baton::router
