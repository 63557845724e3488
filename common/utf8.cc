#include "common/utf8.h"

#include "absl/strings/str_cat.h"

namespace baton {
namespace {

// What may follow a leading byte: the number of continuation bytes and the
// range of the first of them (Unicode Standard, table 3-7).
struct Leading {
  int continuations;  // 0: not a leading byte of a multi-byte sequence
  uint8_t low;
  uint8_t high;
};

Leading ReadLeading(uint8_t byte) {
  if (byte >= 0xC2 && byte <= 0xDF) return {1, 0x80, 0xBF};
  if (byte == 0xE0) return {2, 0xA0, 0xBF};
  if (byte == 0xED) return {2, 0x80, 0x9F};
  if (byte >= 0xE1 && byte <= 0xEF) return {2, 0x80, 0xBF};
  if (byte == 0xF0) return {3, 0x90, 0xBF};
  if (byte >= 0xF1 && byte <= 0xF3) return {3, 0x80, 0xBF};
  if (byte == 0xF4) return {3, 0x80, 0x8F};
  return {0, 0, 0};
}

}  // namespace

Utf8Step NextUtf8(absl::string_view text, size_t pos) {
  const auto byte_at = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t first = byte_at(pos);
  if (first < 0x80) return {Utf8Kind::kCharacter, 1, first};
  const Leading leading = ReadLeading(first);
  if (leading.continuations == 0) return {Utf8Kind::kIllFormed, 1, 0};
  char32_t code_point = first & (0x3F >> leading.continuations);
  uint8_t low = leading.low;
  uint8_t high = leading.high;
  for (int i = 1; i <= leading.continuations; ++i) {
    if (pos + i >= text.size()) return {Utf8Kind::kIncomplete, i, 0};
    const uint8_t byte = byte_at(pos + i);
    if (byte < low || byte > high) return {Utf8Kind::kIllFormed, i, 0};
    code_point = (code_point << 6) | (byte & 0x3F);
    low = 0x80;
    high = 0xBF;
  }
  return {Utf8Kind::kCharacter, leading.continuations + 1, code_point};
}

size_t ValidUtf8Length(absl::string_view text, size_t pos) {
  size_t at = pos;
  while (at < text.size()) {
    if (static_cast<uint8_t>(text[at]) < 0x80) {
      ++at;
      continue;
    }
    const Utf8Step step = NextUtf8(text, at);
    if (step.kind != Utf8Kind::kCharacter) break;
    at += step.size;
  }
  return at - pos;
}

bool IsValidUtf8(absl::string_view text) {
  return ValidUtf8Length(text, 0) == text.size();
}

std::string ReplaceIllFormedUtf8(absl::string_view text) {
  std::string out;
  out.reserve(text.size());
  size_t at = 0;
  while (at < text.size()) {
    const size_t valid = ValidUtf8Length(text, at);
    absl::StrAppend(&out, text.substr(at, valid));
    at += valid;
    if (at == text.size()) break;
    absl::StrAppend(&out, kReplacementCharacter);
    at += NextUtf8(text, at).size;
  }
  return out;
}

std::string CutUtf8(absl::string_view text, size_t max_bytes) {
  absl::string_view kept = text.substr(0, max_bytes);
  if (kept.size() < text.size()) {
    // No character has more than three bytes before its last one.
    for (size_t back = 1; back <= 3 && back <= kept.size(); ++back) {
      if (NextUtf8(kept, kept.size() - back).kind == Utf8Kind::kIncomplete) {
        kept.remove_suffix(back);
        break;
      }
    }
  }
  return ReplaceIllFormedUtf8(kept);
}

bool IsControlCharacter(char32_t code_point) {
  return code_point < 0x20 ||
         (code_point >= 0x7F && code_point <= 0x9F) ||    // DEL, C1
         code_point == 0x2028 || code_point == 0x2029 ||  // line, paragraph
         code_point == 0x061C || code_point == 0x200E || code_point == 0x200F ||
         (code_point >= 0x202A && code_point <= 0x202E) ||
         (code_point >= 0x2066 && code_point <= 0x2069);
}

void AppendUtf8(char32_t code_point, std::string* out) {
  const auto put = [&](uint32_t byte) {
    out->push_back(static_cast<char>(byte));
  };
  if (code_point < 0x80) {
    put(code_point);
  } else if (code_point < 0x800) {
    put(0xC0 | (code_point >> 6));
    put(0x80 | (code_point & 0x3F));
  } else if (code_point < 0x10000) {
    put(0xE0 | (code_point >> 12));
    put(0x80 | ((code_point >> 6) & 0x3F));
    put(0x80 | (code_point & 0x3F));
  } else {
    put(0xF0 | (code_point >> 18));
    put(0x80 | ((code_point >> 12) & 0x3F));
    put(0x80 | ((code_point >> 6) & 0x3F));
    put(0x80 | (code_point & 0x3F));
  }
}

}  // namespace baton
