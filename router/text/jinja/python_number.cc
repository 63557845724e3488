// How Python spells numbers and reads them.

#include <charconv>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "router/text/jinja/python_text.h"

namespace baton::router::jinja {
namespace {

__extension__ typedef unsigned __int128 Unsigned;

int DigitOf(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'z') return c - 'a' + 10;
  if (c >= 'A' && c <= 'Z') return c - 'A' + 10;
  return 99;
}

// Takes "0x", "0o" or "0b", where it stands for `base`. Base 0 takes any.
int TakePrefix(absl::string_view* text, int base) {
  if (text->size() < 2 || (*text)[0] != '0') return base == 0 ? 10 : base;
  const char letter = absl::ascii_tolower((*text)[1]);
  const int of_prefix = letter == 'x'   ? 16
                        : letter == 'o' ? 8
                        : letter == 'b' ? 2
                                        : 0;
  if (of_prefix != 0 && (base == 0 || base == of_prefix)) {
    text->remove_prefix(2);
    // "0x_1" is a number, "_1" is not.
    if (!text->empty() && text->front() == '_') text->remove_prefix(1);
    return of_prefix;
  }
  return base == 0 ? 10 : base;
}

// Without the underscores between digits; nothing where others are.
std::optional<std::string> WithoutUnderscores(absl::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '_') {
      out.push_back(text[i]);
      continue;
    }
    const bool between = i > 0 && i + 1 < text.size() &&
                         absl::ascii_isalnum(text[i - 1]) &&
                         absl::ascii_isalnum(text[i + 1]);
    if (!between) return std::nullopt;
  }
  return out;
}

}  // namespace

std::string ReprInteger(Integer number) {
  if (number >= std::numeric_limits<int64_t>::min() &&
      number <= std::numeric_limits<int64_t>::max()) {
    return absl::StrCat(static_cast<int64_t>(number));
  }
  Unsigned rest = number < 0 ? -static_cast<Unsigned>(number)
                             : static_cast<Unsigned>(number);
  std::string digits;
  for (; rest != 0; rest /= 10) {
    digits.push_back(static_cast<char>('0' + static_cast<int>(rest % 10)));
  }
  if (number < 0) digits.push_back('-');
  return std::string(digits.rbegin(), digits.rend());
}

std::string ReprFloat(double number) {
  if (std::isnan(number)) return "nan";
  if (std::isinf(number)) return number < 0 ? "-inf" : "inf";
  char buffer[64];
  const auto end = std::to_chars(buffer, buffer + sizeof(buffer), number,
                                 std::chars_format::scientific);
  const absl::string_view all(buffer, static_cast<size_t>(end.ptr - buffer));
  const size_t e = all.find('e');
  std::string digits;
  for (const char c : all.substr(0, e)) {
    if (absl::ascii_isdigit(c)) digits.push_back(c);
  }
  const int exponent = std::atoi(std::string(all.substr(e + 1)).c_str());
  std::string out = std::signbit(number) ? "-" : "";
  const auto count = static_cast<int>(digits.size());
  if (exponent < -4 || exponent >= 16) {
    out += digits.substr(0, 1);
    if (count > 1) absl::StrAppend(&out, ".", digits.substr(1));
    absl::StrAppend(&out, exponent < 0 ? "e-" : "e+",
                    std::abs(exponent) < 10 ? "0" : "", std::abs(exponent));
  } else if (exponent < 0) {
    out += "0." + std::string(static_cast<size_t>(-exponent - 1), '0') + digits;
  } else if (exponent + 1 >= count) {
    out += digits + std::string(static_cast<size_t>(exponent + 1 - count), '0');
    out += ".0";
  } else {
    const auto whole = static_cast<size_t>(exponent + 1);
    absl::StrAppend(&out, digits.substr(0, whole), ".", digits.substr(whole));
  }
  return out;
}

std::optional<Integer> ParseInteger(absl::string_view text, int base,
                                    bool* too_large) {
  *too_large = false;
  if (base != 0 && (base < 2 || base > 36)) return std::nullopt;
  text = Strip(text, Side::kBoth, std::nullopt);
  const bool negative = !text.empty() && text[0] == '-';
  if (!text.empty() && (text[0] == '-' || text[0] == '+')) {
    text.remove_prefix(1);
  }
  const int literal_base = base;
  base = TakePrefix(&text, base);
  const std::optional<std::string> digits = WithoutUnderscores(text);
  if (!digits.has_value() || digits->empty()) return std::nullopt;
  Integer value = 0;
  for (const char c : *digits) {
    const int digit = DigitOf(c);
    if (digit >= base) {
      *too_large = false;
      return std::nullopt;
    }
    if (*too_large) continue;
    *too_large = __builtin_mul_overflow(value, Integer{base}, &value) ||
                 __builtin_sub_overflow(value, Integer{digit}, &value);
  }
  // Python reads "010" in base 10, but not where it finds the base itself.
  if (literal_base == 0 && base == 10 && digits->size() > 1 &&
      (*digits)[0] == '0' && value != 0) {
    return std::nullopt;
  }
  if (!negative && __builtin_sub_overflow(Integer{0}, value, &value)) {
    *too_large = true;
  }
  if (*too_large) return std::nullopt;
  return value;
}

std::optional<double> ParseFloat(absl::string_view text) {
  text = Strip(text, Side::kBoth, std::nullopt);
  const std::optional<std::string> plain = WithoutUnderscores(text);
  if (!plain.has_value()) return std::nullopt;
  absl::string_view rest = *plain;
  const bool negative = !rest.empty() && rest[0] == '-';
  if (!rest.empty() && (rest[0] == '-' || rest[0] == '+')) {
    rest.remove_prefix(1);
  }
  const std::string word = absl::AsciiStrToLower(rest);
  double value = 0;
  if (word == "inf" || word == "infinity") {
    value = std::numeric_limits<double>::infinity();
  } else if (word == "nan") {
    value = std::numeric_limits<double>::quiet_NaN();
  } else {
    if (word.empty() ||
        word.find_first_not_of("0123456789.e+-") != std::string::npos ||
        word[0] == '-' || word[0] == '+') {
      return std::nullopt;
    }
    const char* const end = word.data() + word.size();
    const auto read = std::from_chars(word.data(), end, value);
    if (read.ptr != end) return std::nullopt;
    if (read.ec == std::errc::result_out_of_range) {
      // Too small is nothing, too large infinite, as strtod has it.
      value = std::strtod(word.c_str(), nullptr);
    } else if (read.ec != std::errc()) {
      return std::nullopt;
    }
  }
  return negative ? -value : value;
}

}  // namespace baton::router::jinja
