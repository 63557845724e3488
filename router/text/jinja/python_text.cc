#include "router/text/jinja/python_text.h"

#include <unicode/uchar.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/utf8.h"
#include "router/text/unicode.h"

namespace baton::router::jinja {
namespace {

bool IsContinuation(char c) {
  return (static_cast<unsigned char>(c) & 0xC0) == 0x80;
}

// The code point that starts at text[*at], which moves behind it.
char32_t Next(absl::string_view text, size_t* at) {
  const auto first = static_cast<unsigned char>(text[*at]);
  if (first < 0x80) {
    ++*at;
    return first;
  }
  const Utf8Step step = NextUtf8(text, *at);
  *at += step.size;
  return step.kind == Utf8Kind::kCharacter ? step.code_point : 0xFFFD;
}

// The code point that ends at text[*end], which moves to its start.
char32_t Previous(absl::string_view text, size_t* end) {
  size_t start = *end - 1;
  while (start > 0 && IsContinuation(text[start])) --start;
  *end = start;
  return Next(text, &start);
}

bool IsLineEnd(char32_t c) {
  return (c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85 ||
         c == 0x2028 || c == 0x2029;
}

}  // namespace

int64_t CodePoints(absl::string_view text) {
  int64_t continuations = 0;
  for (const char c : text) continuations += IsContinuation(c) ? 1 : 0;
  return static_cast<int64_t>(text.size()) - continuations;
}

size_t ByteOffset(absl::string_view text, int64_t length, int64_t index) {
  if (index >= length) return text.size();
  if (length == static_cast<int64_t>(text.size())) {
    return static_cast<size_t>(index);
  }
  size_t at = 0;
  while (true) {
    if (!IsContinuation(text[at]) && index-- == 0) return at;
    ++at;
  }
}

std::u32string Decode(absl::string_view text) {
  std::u32string out;
  out.reserve(text.size());
  for (size_t at = 0; at < text.size();) out.push_back(Next(text, &at));
  return out;
}

std::string Encode(std::u32string_view text) {
  std::string out;
  out.reserve(text.size());
  for (const char32_t c : text) AppendUtf8(c, &out);
  return out;
}

size_t FindText(absl::string_view text, absl::string_view part, size_t from) {
  if (from > text.size()) return std::string::npos;
  if (part.empty()) return from;
  if (part.size() == 1) return text.find(part[0], from);
  const void* const found = ::memmem(text.data() + from, text.size() - from,
                                     part.data(), part.size());
  if (found == nullptr) return std::string::npos;
  return static_cast<size_t>(static_cast<const char*>(found) - text.data());
}

size_t FindLastText(absl::string_view text, absl::string_view part,
                    size_t end) {
  end = std::min(end, text.size());
  if (part.size() > end) return std::string::npos;
  if (part.empty()) return end;
  // The first occurrence in the mirror.
  const std::string mirror(text.rend() - static_cast<ptrdiff_t>(end),
                           text.rend());
  const std::string mirrored_part(part.rbegin(), part.rend());
  const size_t found = FindText(mirror, mirrored_part, 0);
  return found == std::string::npos ? found : end - found - part.size();
}

bool IsSpace(char32_t c) {
  if (c < 0x80) return c == ' ' || (c >= 9 && c <= 13) || (c >= 28 && c <= 31);
  return IsWhitespace(c);
}

bool IsWordCharacterOfRe(char32_t c) {
  const auto code = static_cast<UChar32>(c);
  return c == '_' || u_isalpha(code) != 0 || IsNumeric(c);
}

bool IsPrintable(char32_t c) {
  constexpr uint32_t kNotPrintable = U_GC_C_MASK | U_GC_Z_MASK;
  return c == ' ' ||
         (U_GET_GC_MASK(static_cast<UChar32>(c)) & kNotPrintable) == 0;
}

absl::string_view Strip(absl::string_view text, Side side,
                        std::optional<absl::string_view> chars) {
  std::u32string set;
  if (chars.has_value()) {
    set = Decode(*chars);
    std::sort(set.begin(), set.end());
  }
  const auto strips = [&](char32_t c) {
    return chars.has_value() ? std::binary_search(set.begin(), set.end(), c)
                             : IsSpace(c);
  };
  if (side != Side::kRight) {
    size_t begin = 0;
    for (size_t next = 0; begin < text.size(); begin = next) {
      if (!strips(Next(text, &next))) break;
    }
    text.remove_prefix(begin);
  }
  if (side != Side::kLeft) {
    size_t end = text.size();
    for (size_t before = end; end > 0; end = before) {
      if (!strips(Previous(text, &before))) break;
    }
    text = text.substr(0, end);
  }
  return text;
}

std::vector<absl::string_view> SplitLines(absl::string_view text,
                                          bool keep_ends) {
  std::vector<absl::string_view> lines;
  size_t start = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t end = at;
    const char32_t c = Next(text, &at);
    if (!IsLineEnd(c)) continue;
    if (c == '\r' && at < text.size() && text[at] == '\n') ++at;
    lines.push_back(text.substr(start, (keep_ends ? at : end) - start));
    start = at;
  }
  if (start < text.size()) lines.push_back(text.substr(start));
  return lines;
}

std::string EscapeHtml(absl::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '\'':
        out += "&#39;";
        break;
      case '"':
        out += "&#34;";
        break;
      default:
        out.push_back(c);
    }
  }
  return out;
}

std::string ReprText(absl::string_view text) {
  const bool has_single = text.find('\'') != absl::string_view::npos;
  const bool has_double = text.find('"') != absl::string_view::npos;
  const char quote = has_single && !has_double ? '"' : '\'';
  std::string out(1, quote);
  for (size_t at = 0; at < text.size();) {
    const char32_t c = Next(text, &at);
    if (c == static_cast<char32_t>(quote) || c == '\\') {
      out.push_back('\\');
      out.push_back(static_cast<char>(c));
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\r') {
      out += "\\r";
    } else if (c == '\t') {
      out += "\\t";
    } else if (IsPrintable(c)) {
      AppendUtf8(c, &out);
    } else if (c < 0x100) {
      absl::StrAppend(&out, "\\x", absl::Hex(c, absl::kZeroPad2));
    } else if (c < 0x10000) {
      absl::StrAppend(&out, "\\u", absl::Hex(c, absl::kZeroPad4));
    } else {
      absl::StrAppend(&out, "\\U", absl::Hex(c, absl::kZeroPad8));
    }
  }
  out.push_back(quote);
  return out;
}

std::string ShortText(absl::string_view text) {
  constexpr size_t kMaxShown = 60;
  if (text.size() <= kMaxShown) return std::string(text);
  size_t end = kMaxShown - 3;
  while (end > 0 && IsContinuation(text[end])) --end;
  return absl::StrCat(text.substr(0, end), "...");
}

}  // namespace baton::router::jinja
