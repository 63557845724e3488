#include "router/text/jinja/string_literal.h"

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "common/utf8.h"

namespace baton::router::jinja {
namespace {

// What a letter behind a backslash stands for; 0 where it is not one of these.
char SimpleEscape(char letter) {
  switch (letter) {
    case 'n':
      return '\n';
    case 't':
      return '\t';
    case 'r':
      return '\r';
    case 'a':
      return '\a';
    case 'b':
      return '\b';
    case 'f':
      return '\f';
    case 'v':
      return '\v';
    case '\\':
    case '\'':
    case '"':
      return letter;
    default:
      return 0;
  }
}

size_t HexDigits(char letter) {
  return letter == 'x' ? 2 : letter == 'u' ? 4 : letter == 'U' ? 8 : 0;
}

uint32_t DigitValue(char c) {
  return absl::ascii_isdigit(c)
             ? static_cast<uint32_t>(c - '0')
             : static_cast<uint32_t>(absl::ascii_tolower(c) - 'a' + 10);
}

// The digits behind "\x" and its like, from text[at].
absl::StatusOr<char32_t> HexEscape(absl::string_view text, size_t at,
                                   size_t count) {
  uint32_t value = 0;
  for (size_t i = 0; i < count; ++i) {
    if (at + i >= text.size() || !absl::ascii_isxdigit(text[at + i])) {
      return absl::InvalidArgumentError(
          absl::StrCat("an escape in a string needs ", count, " hex digits"));
    }
    value = value * 16 + DigitValue(text[at + i]);
  }
  if (value > 0x10FFFF || (value >= 0xD800 && value <= 0xDFFF)) {
    return absl::InvalidArgumentError(
        "an escape in a string stands for no character");
  }
  return static_cast<char32_t>(value);
}

}  // namespace

absl::StatusOr<std::string> UnescapeString(absl::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    const char c = text[at];
    if (c != '\\' || at + 1 >= text.size()) {
      out.push_back(c);
      ++at;
      continue;
    }
    const char letter = text[at + 1];
    at += 2;
    if (letter == '\n') continue;
    if (const char simple = SimpleEscape(letter); simple != 0) {
      out.push_back(simple);
    } else if (const size_t count = HexDigits(letter); count > 0) {
      BATON_ASSIGN_OR_RETURN(const char32_t code, HexEscape(text, at, count));
      AppendUtf8(code, &out);
      at += count;
    } else if (letter >= '0' && letter <= '7') {
      uint32_t value = DigitValue(letter);
      for (int i = 0;
           i < 2 && at < text.size() && text[at] >= '0' && text[at] <= '7';
           ++i) {
        value = value * 8 + DigitValue(text[at++]);
      }
      AppendUtf8(static_cast<char32_t>(value), &out);
    } else if (letter == 'N') {
      return absl::InvalidArgumentError(
          "an escape in a string names a character (\\N{...}), which is not "
          "supported");
    } else {
      // Not an escape: Python leaves it.
      out.push_back('\\');
      --at;
    }
  }
  return out;
}

}  // namespace baton::router::jinja
