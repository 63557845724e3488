#include "router/text/byte_token.h"

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"

namespace baton::router {
namespace {

int DigitValue(char digit) {
  if (absl::ascii_isdigit(digit)) return digit - '0';
  return absl::ascii_tolower(digit) - 'a' + 10;
}

}  // namespace

std::optional<uint8_t> ByteOfToken(absl::string_view token) {
  const bool has_form = token.size() == 6 && absl::StartsWith(token, "<0x") &&
                        token[5] == '>' && absl::ascii_isxdigit(token[3]) &&
                        absl::ascii_isxdigit(token[4]);
  if (!has_form) return std::nullopt;
  return static_cast<uint8_t>(DigitValue(token[3]) * 16 + DigitValue(token[4]));
}

}  // namespace baton::router
