#include "router/http/page_guard.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <algorithm>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "router/http/openai_error.h"

namespace baton::router::http {
namespace {

// Of a header, for the error about it.
constexpr size_t kMaxShownBytes = 200;

// "host:port" without ":port"; an IPv6 address keeps its brackets.
absl::string_view WithoutPort(absl::string_view host) {
  const size_t colon = host.rfind(':');
  if (colon == absl::string_view::npos) return host;
  const absl::string_view port = host.substr(colon + 1);
  if (!std::all_of(port.begin(), port.end(), absl::ascii_isdigit)) return host;
  return host.substr(0, colon);
}

// All that the system's resolver takes for an address without asking anybody:
// "127.1" is one.
bool IsIpAddress(absl::string_view host) {
  std::string text(host);
  in6_addr v6 = {};
  if (absl::ConsumePrefix(&host, "[")) {
    if (!absl::ConsumeSuffix(&host, "]")) return false;
    // A zone says through which interface.
    text = std::string(host.substr(0, host.find('%')));
    return inet_pton(AF_INET6, text.c_str(), &v6) == 1;
  }
  // inet_aton reads no further than to a blank.
  in_addr v4 = {};
  return text.find_first_of(" \t\r\n\v\f") == std::string::npos &&
         inet_aton(text.c_str(), &v4) == 1;
}

}  // namespace

bool IsOwnHost(absl::string_view host) {
  std::string name = absl::AsciiStrToLower(WithoutPort(host));
  if (!name.empty() && name.back() == '.') name.pop_back();
  return name == "localhost" || absl::EndsWith(name, ".localhost") ||
         IsIpAddress(name);
}

bool IsSameOrigin(absl::string_view origin, absl::string_view host) {
  const std::string origin_text = absl::AsciiStrToLower(origin);
  const std::string host_text = absl::AsciiStrToLower(host);
  absl::string_view page = origin_text;
  absl::string_view server = host_text;
  absl::string_view default_port;
  if (absl::ConsumePrefix(&page, "http://")) {
    default_port = ":80";
  } else if (absl::ConsumePrefix(&page, "https://")) {
    default_port = ":443";
  } else {
    return false;  // "null", or an extension's
  }
  absl::ConsumeSuffix(&page, default_port);
  absl::ConsumeSuffix(&server, default_port);
  return !page.empty() && page == server;
}

std::optional<Response> RefuseOtherPages(const Request& head) {
  const absl::string_view host = head.Header("host");
  for (const auto& [name, value] : head.headers) {
    if (name != "origin" || IsSameOrigin(value, host)) continue;
    return ForbiddenResponse(
        absl::StrCat("the page of ",
                     absl::string_view(value).substr(0, kMaxShownBytes),
                     " may not use this router: it has no API keys, so it "
                     "serves no other pages than its own"),
        "forbidden_origin");
  }
  // Browsers always send one.
  if (!head.loopback || host.empty() || IsOwnHost(host)) return std::nullopt;
  return ForbiddenResponse(
      absl::StrCat("this router has no API keys and listens on a loopback "
                   "address, so it serves only localhost and IP addresses, "
                   "not the host ",
                   host.substr(0, kMaxShownBytes)),
      "forbidden_host");
}

}  // namespace baton::router::http
