// Upper, lower and title case as Python's str has them: full mappings, where a
// character may become several.

#include <unicode/locid.h>
#include <unicode/uchar.h>
#include <unicode/unistr.h>

#include "absl/strings/ascii.h"
#include "common/utf8.h"
#include "router/text/jinja/python_text.h"
#include "router/text/unicode.h"

namespace baton::router::jinja {
namespace {

icu::UnicodeString ToIcu(absl::string_view text) {
  return icu::UnicodeString::fromUTF8(
      icu::StringPiece(text.data(), static_cast<int32_t>(text.size())));
}

bool IsCased(char32_t c) {
  return u_hasBinaryProperty(static_cast<UChar32>(c), UCHAR_CASED) != 0;
}
bool IsLowercase(char32_t c) {
  return u_hasBinaryProperty(static_cast<UChar32>(c), UCHAR_LOWERCASE) != 0;
}
bool IsUppercase(char32_t c) {
  return u_hasBinaryProperty(static_cast<UChar32>(c), UCHAR_UPPERCASE) != 0;
}

// One character in title case: "ß" becomes "Ss".
std::string TitleOf(char32_t c) {
  std::string own;
  AppendUtf8(c, &own);
  const auto simple = static_cast<char32_t>(u_totitle(static_cast<UChar32>(c)));
  if (simple != c || !IsLowercase(c)) {
    std::string out;
    AppendUtf8(simple, &out);
    return out;
  }
  const std::u32string upper = Decode(ToUpper(own));
  if (upper.size() < 2) return own;
  const std::string tail = Encode(upper.substr(1));
  return Encode(upper.substr(0, 1)) +
         (IsCased(upper[0]) ? ToLower(tail) : tail);
}

// text[begin, end) in lower case, within the text up to its end.
std::string LowerFrom(std::u32string_view text, size_t begin, size_t end) {
  // A final sigma looks at what stands before it.
  const std::string whole = ToLower(Encode(text.substr(0, end)));
  const std::string before = ToLower(Encode(text.substr(0, begin)));
  return whole.size() >= before.size() ? whole.substr(before.size()) : whole;
}

}  // namespace

std::string ToUpper(absl::string_view text) {
  if (IsAscii(text)) return absl::AsciiStrToUpper(text);
  std::string out;
  ToIcu(text).toUpper(icu::Locale::getRoot()).toUTF8String(out);
  return out;
}

std::string ToLower(absl::string_view text) {
  if (IsAscii(text)) return absl::AsciiStrToLower(text);
  std::string out;
  ToIcu(text).toLower(icu::Locale::getRoot()).toUTF8String(out);
  return out;
}

std::string Capitalize(absl::string_view text) {
  if (text.empty()) return "";
  const std::u32string all = Decode(text);
  return TitleOf(all[0]) + LowerFrom(all, 1, all.size());
}

std::string ToTitle(absl::string_view text) {
  const std::u32string all = Decode(text);
  std::string out;
  out.reserve(text.size());
  for (size_t at = 0; at < all.size();) {
    if (!IsCased(all[at])) {
      AppendUtf8(all[at++], &out);
      continue;
    }
    size_t end = at + 1;
    while (end < all.size() && IsCased(all[end])) ++end;
    out += TitleOf(all[at]);
    const std::u32string_view word =
        std::u32string_view(all).substr(at, end - at);
    out += LowerFrom(word, 1, word.size());
    at = end;
  }
  return out;
}

std::string SwapCase(absl::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (const char32_t c : Decode(text)) {
    std::string own;
    AppendUtf8(c, &own);
    out += IsUppercase(c) ? ToLower(own) : IsLowercase(c) ? ToUpper(own) : own;
  }
  return out;
}

std::string CaseFold(absl::string_view text) {
  if (IsAscii(text)) return absl::AsciiStrToLower(text);
  std::string out;
  ToIcu(text).foldCase().toUTF8String(out);
  return out;
}

bool IsLower(absl::string_view text) {
  bool any = false;
  for (const char32_t c : Decode(text)) {
    if (IsLowercase(c)) any = true;
    if (IsCased(c) && !IsLowercase(c)) return false;
  }
  return any;
}

bool IsUpper(absl::string_view text) {
  bool any = false;
  for (const char32_t c : Decode(text)) {
    if (IsUppercase(c)) any = true;
    if (IsCased(c) && !IsUppercase(c)) return false;
  }
  return any;
}

}  // namespace baton::router::jinja
