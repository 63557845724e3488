#include "common/log_escape.h"

#include <cstddef>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace baton {
namespace {

struct Character {
  uint32_t code = 0;
  size_t bytes = 1;
  bool valid = false;  // else `bytes` is 1
};

// The character that `text` begins with. REQUIRES: not empty.
Character First(absl::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t lead = byte(0);
  if (lead < 0x80) return {lead, 1, true};
  const size_t bytes = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  if (lead < 0xc2 || lead > 0xf4 || text.size() < bytes) return {};
  uint32_t code = lead & (0xff >> (bytes + 1));
  for (size_t i = 1; i < bytes; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return {};
    code = code << 6 | (byte(i) & 0x3f);
  }
  const bool overlong =
      (bytes == 3 && code < 0x800) || (bytes == 4 && code < 0x10000);
  const bool surrogate = code >= 0xd800 && code <= 0xdfff;
  if (overlong || surrogate || code > 0x10ffff) return {};
  return {code, bytes, true};
}

// Moves the cursor, ends lines, or turns the direction of writing.
bool IsControl(uint32_t code) {
  return code < 0x20 || (code >= 0x7f && code <= 0x9f) ||  // C0, DEL, C1
         code == 0x2028 || code == 0x2029 ||  // line, paragraph separator
         code == 0x061c || code == 0x200e || code == 0x200f ||
         (code >= 0x202a && code <= 0x202e) ||
         (code >= 0x2066 && code <= 0x2069);
}

void AppendControl(uint32_t code, std::string* out) {
  switch (code) {
    case '\n':
      out->append("\\n");
      return;
    case '\r':
      out->append("\\r");
      return;
    case '\t':
      out->append("\\t");
      return;
    default:
      absl::StrAppendFormat(out, "\\u%04x", code);
      return;
  }
}

// With quotes and backslashes escaped when `quoted`.
void AppendEscaped(absl::string_view text, bool quoted, std::string* out) {
  while (!text.empty()) {
    const Character character = First(text);
    if (!character.valid) {
      absl::StrAppendFormat(out, "\\x%02x", static_cast<uint8_t>(text[0]));
    } else if (IsControl(character.code)) {
      AppendControl(character.code, out);
    } else {
      if (quoted && (text[0] == '"' || text[0] == '\\')) out->push_back('\\');
      absl::StrAppend(out, text.substr(0, character.bytes));
    }
    text.remove_prefix(character.bytes);
  }
}

bool IsPlainWord(absl::string_view text) {
  for (char c : text) {
    if (c <= ' ' || c > '~' || c == '"' || c == '=' || c == '\\') return false;
  }
  return !text.empty();
}

}  // namespace

void AppendPrintable(absl::string_view text, std::string* out) {
  AppendEscaped(text, /*quoted=*/false, out);
}

void AppendLogValue(absl::string_view text, std::string* out) {
  if (IsPlainWord(text)) {
    absl::StrAppend(out, text);
    return;
  }
  out->push_back('"');
  AppendEscaped(text, /*quoted=*/true, out);
  out->push_back('"');
}

void AppendJsonString(absl::string_view text, std::string* out) {
  out->push_back('"');
  while (!text.empty()) {
    const Character character = First(text);
    if (!character.valid) {
      out->append("\\ufffd");
    } else if (IsControl(character.code)) {
      AppendControl(character.code, out);
    } else {
      if (text[0] == '"' || text[0] == '\\') out->push_back('\\');
      absl::StrAppend(out, text.substr(0, character.bytes));
    }
    text.remove_prefix(character.bytes);
  }
  out->push_back('"');
}

}  // namespace baton
