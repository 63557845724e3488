#include "common/log_escape.h"

#include <cstddef>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/utf8.h"

namespace baton {
namespace {

void AppendControl(char32_t code_point, std::string* out) {
  switch (code_point) {
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
      absl::StrAppendFormat(out, "\\u%04x", static_cast<uint32_t>(code_point));
      return;
  }
}

// With quotes and backslashes escaped when `quoted`.
void AppendEscaped(absl::string_view text, bool quoted, std::string* out) {
  for (size_t pos = 0; pos < text.size();) {
    const Utf8Step step = NextUtf8(text, pos);
    const absl::string_view bytes = text.substr(pos, step.size);
    if (step.kind != Utf8Kind::kCharacter) {
      for (char byte : bytes) {
        absl::StrAppendFormat(out, "\\x%02x", static_cast<uint8_t>(byte));
      }
    } else if (IsControlCharacter(step.code_point)) {
      AppendControl(step.code_point, out);
    } else {
      if (quoted && (text[pos] == '"' || text[pos] == '\\')) {
        out->push_back('\\');
      }
      absl::StrAppend(out, bytes);
    }
    pos += step.size;
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

}  // namespace baton
