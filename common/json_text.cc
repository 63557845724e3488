#include "common/json_text.h"

#include <charconv>
#include <cmath>
#include <cstdint>

#include "common/utf8.h"

namespace baton {
namespace {

constexpr char kHex[] = "0123456789abcdef";

bool IsPlain(unsigned char c) {
  return c >= 0x20 && c < 0x7F && c != '"' && c != '\\';
}

// REQUIRES: below 0x10000, as all that is escaped.
void AppendEscape(char32_t code_point, std::string* out) {
  switch (code_point) {
    case '"':
      out->append("\\\"");
      return;
    case '\\':
      out->append("\\\\");
      return;
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
      out->append("\\u");
      for (int shift = 12; shift >= 0; shift -= 4) {
        out->push_back(kHex[(code_point >> shift) & 15]);
      }
  }
}

}  // namespace

void AppendJsonEscaped(absl::string_view text, std::string* out) {
  size_t pos = 0;
  while (pos < text.size()) {
    size_t end = pos;
    while (end < text.size() &&
           IsPlain(static_cast<unsigned char>(text[end]))) {
      ++end;
    }
    out->append(text.data() + pos, end - pos);
    pos = end;
    if (pos == text.size()) break;
    const Utf8Step step = NextUtf8(text, pos);
    if (step.kind != Utf8Kind::kCharacter) {
      out->append(kReplacementCharacter.data(), kReplacementCharacter.size());
    } else if (step.code_point < 0x80 || IsControlCharacter(step.code_point)) {
      AppendEscape(step.code_point, out);
    } else {
      out->append(text.data() + pos, step.size);
    }
    pos += step.size;
  }
}

void AppendJsonString(absl::string_view text, std::string* out) {
  out->push_back('"');
  AppendJsonEscaped(text, out);
  out->push_back('"');
}

void AppendJsonFloat(float value, std::string* out) {
  if (!std::isfinite(value)) {
    out->append("-9999.0");
    return;
  }
  char buffer[32];
  const auto end = std::to_chars(buffer, buffer + sizeof(buffer), value).ptr;
  out->append(buffer, end);
}

}  // namespace baton
