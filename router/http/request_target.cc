#include "router/http/request_target.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/strip.h"
#include "common/status_macros.h"

namespace baton::router::http {
namespace {

// The value of a hexadecimal digit; -1 for other characters.
int HexValue(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

absl::StatusOr<std::string> PercentDecode(absl::string_view text) {
  std::string decoded;
  decoded.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      decoded.push_back(text[i]);
      continue;
    }
    const int high = i + 2 < text.size() ? HexValue(text[i + 1]) : -1;
    const int low = i + 2 < text.size() ? HexValue(text[i + 2]) : -1;
    if (high < 0 || low < 0) {
      return absl::InvalidArgumentError(
          "The path of the request has a broken percent escape.");
    }
    const char c = static_cast<char>(high * 16 + low);
    if (c == '\0') {
      return absl::InvalidArgumentError(
          "The path of the request has a zero byte.");
    }
    decoded.push_back(c);
    i += 2;
  }
  return decoded;
}

}  // namespace

absl::StatusOr<RequestTarget> ParseRequestTarget(absl::string_view target) {
  if (target == "*") return RequestTarget{"*", ""};
  if (absl::StartsWithIgnoreCase(target, "http://") ||
      absl::StartsWithIgnoreCase(target, "https://")) {
    target.remove_prefix(target.find("//") + 2);
    const size_t end = target.find_first_of("/?");
    target = end == absl::string_view::npos ? "" : target.substr(end);
  } else if (!absl::StartsWith(target, "/")) {
    return absl::InvalidArgumentError(
        "The path of the request does not begin with '/'.");
  }
  const size_t question = target.find('?');
  RequestTarget parsed;
  if (question != absl::string_view::npos) {
    parsed.query = std::string(target.substr(question + 1));
  }
  BATON_ASSIGN_OR_RETURN(parsed.path,
                         PercentDecode(target.substr(0, question)));
  if (parsed.path.empty()) parsed.path.push_back('/');
  return parsed;
}

}  // namespace baton::router::http
