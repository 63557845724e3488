// format.h: how numbers are written and padded.

#include <algorithm>
#include <charconv>
#include <cmath>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "common/utf8.h"
#include "router/text/jinja/format.h"
#include "router/text/jinja/python_text.h"

namespace baton::router::jinja {
namespace {

constexpr int kMaxWidth = 10'000;

__extension__ typedef unsigned __int128 Unsigned;

std::string Digits(Integer number, int base) {
  Unsigned rest = number < 0 ? -static_cast<Unsigned>(number)
                             : static_cast<Unsigned>(number);
  if (rest == 0) return "0";
  std::string digits;
  for (; rest != 0; rest /= static_cast<Unsigned>(base)) {
    digits.push_back("0123456789abcdef"[static_cast<int>(
        rest % static_cast<Unsigned>(base))]);
  }
  return std::string(digits.rbegin(), digits.rend());
}

// With `separator` between groups of the whole part's digits.
std::string Grouped(const std::string& text, char separator, size_t size) {
  const size_t whole =
      std::min(text.find_first_not_of("0123456789abcdefABCDEF"), text.size());
  std::string out;
  for (size_t i = 0; i < whole; ++i) {
    if (i > 0 && (whole - i) % size == 0) out.push_back(separator);
    out.push_back(text[i]);
  }
  return out + text.substr(whole);
}

std::string FloatDigits(double number, char type, int precision,
                        bool alternate) {
  if (std::isnan(number)) return "nan";
  if (std::isinf(number)) return "inf";
  const char kind = absl::ascii_tolower(type);
  const auto format = kind == 'f'   ? std::chars_format::fixed
                      : kind == 'e' ? std::chars_format::scientific
                                    : std::chars_format::general;
  std::string buffer(static_cast<size_t>(precision) + 400, '\0');
  if (kind == 'g' && precision == 0) precision = 1;
  const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(),
                                 number, format, precision);
  buffer.resize(static_cast<size_t>(end.ptr - buffer.data()));
  if (alternate && buffer.find('.') == std::string::npos) {
    buffer.insert(std::min(buffer.find('e'), buffer.size()), ".");
  }
  return buffer;
}

std::string FloatText(double number, const FormatSpec& spec) {
  const int precision = spec.precision < 0 ? 6 : spec.precision;
  std::string text;
  if (spec.type == '%') {
    text = FloatDigits(number * 100, 'f', precision, spec.alternate) + "%";
  } else if (spec.type == 0 && spec.precision < 0) {
    text = ReprFloat(number);
  } else if (spec.type == 0) {
    text = FloatDigits(number, 'g', precision, spec.alternate);
    if (text.find_first_of(".en") == std::string::npos) text += ".0";
  } else {
    text = FloatDigits(number, spec.type == 'n' ? 'g' : spec.type, precision,
                       spec.alternate);
  }
  if (absl::ascii_isupper(spec.type)) absl::AsciiStrToUpper(&text);
  return spec.grouping == 0 ? text : Grouped(text, spec.grouping, 3);
}

absl::StatusOr<std::string> IntegerText(Integer number, const FormatSpec& spec,
                                        std::string* prefix) {
  int base = 10;
  if (spec.type == 'b') base = 2;
  if (spec.type == 'o') base = 8;
  if (spec.type == 'x' || spec.type == 'X') base = 16;
  std::string text = Digits(number, base);
  if (base != 10 && spec.alternate) {
    absl::StrAppend(prefix, "0", std::string(1, spec.type));
  }
  if (spec.type == 'X') absl::AsciiStrToUpper(&text);
  if (spec.grouping == 0) return text;
  return Grouped(text, spec.grouping, base == 10 ? 3 : 4);
}

}  // namespace

absl::StatusOr<int> ReadNumber(absl::string_view format, size_t* at) {
  int number = 0;
  for (; *at < format.size() && absl::ascii_isdigit(format[*at]); ++*at) {
    number = number * 10 + (format[*at] - '0');
    if (number > kMaxWidth) {
      return Error(absl::StrCat("a width or precision in a format is above ",
                                kMaxWidth));
    }
  }
  return number;
}

std::string Padded(absl::string_view text, size_t sign_size, char own_align,
                   const FormatSpec& spec) {
  const int64_t missing = spec.width - CodePoints(text);
  if (missing <= 0) return std::string(text);
  const char align = spec.align == 0 ? own_align : spec.align;
  const auto fill = [&](int64_t count) {
    std::string out;
    for (int64_t i = 0; i < count; ++i) out += spec.fill;
    return out;
  };
  if (align == '<') return absl::StrCat(text, fill(missing));
  if (align == '^') {
    return absl::StrCat(fill(missing / 2), text, fill(missing - missing / 2));
  }
  if (align == '=') {
    return absl::StrCat(text.substr(0, sign_size), fill(missing),
                        text.substr(sign_size));
  }
  return absl::StrCat(fill(missing), text);
}

absl::StatusOr<std::string> FormatNumber(const Value& value,
                                         const FormatSpec& spec) {
  const bool wants_float =
      absl::string_view("eEfFgG%").find(spec.type) != absl::string_view::npos &&
      spec.type != 0;
  const bool negative =
      value.is_integral()
          ? value.as_integer() < 0
          : std::signbit(value.as_double()) && !std::isnan(value.as_double());
  std::string prefix = negative           ? "-"
                       : spec.sign == '-' ? ""
                                          : std::string(1, spec.sign);
  std::string text;
  if (value.is_integral() && spec.type == 'c') {
    const Integer code = value.as_integer();
    if (code < 0 || code > 0x10FFFF || (code >= 0xD800 && code <= 0xDFFF)) {
      return Error("%c arg not in range of characters");
    }
    AppendUtf8(static_cast<char32_t>(code), &text);
    prefix.clear();
  } else if (value.is_integral() && !wants_float) {
    if (spec.precision >= 0) {
      return Error("Precision not allowed in integer format specifier");
    }
    BATON_ASSIGN_OR_RETURN(text,
                           IntegerText(value.as_integer(), spec, &prefix));
  } else if (value.is_float() && !wants_float && spec.type != 0 &&
             spec.type != 'n') {
    return Error(absl::StrCat("Unknown format code '",
                              std::string(1, spec.type),
                              "' for object of type 'float'"));
  } else {
    text = FloatText(std::abs(value.as_double()), spec);
  }
  return Padded(prefix + text, prefix.size(), '>', spec);
}

}  // namespace baton::router::jinja
