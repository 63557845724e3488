#include "router/output_format/pattern_escape.h"

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "common/utf8.h"
#include "router/output_format/regular_expression_parser.h"

namespace baton::router {
namespace {

PatternCharacter OneCharacter(char32_t character) {
  PatternCharacter result;
  result.set.Add(character, character);
  result.one = character;
  return result;
}

CharacterSet DigitCharacters() {
  CharacterSet set;
  set.Add('0', '9');
  return set;
}

CharacterSet WordCharacters() {
  CharacterSet set = DigitCharacters();
  set.Add('A', 'Z');
  set.Add('_', '_');
  set.Add('a', 'z');
  return set;
}

// ECMAScript's white space and line terminators.
CharacterSet SpaceCharacters() {
  constexpr CharacterSet::Range kSpaces[] = {
      {0x9, 0xD},       {0x20, 0x20},     {0xA0, 0xA0},     {0x1680, 0x1680},
      {0x2000, 0x200A}, {0x2028, 0x2029}, {0x202F, 0x202F}, {0x205F, 0x205F},
      {0x3000, 0x3000}, {0xFEFF, 0xFEFF}};
  CharacterSet set;
  for (const CharacterSet::Range& range : kSpaces) {
    set.Add(range.first, range.last);
  }
  return set;
}

// The class that \ and `letter` stand for, if they do.
std::optional<CharacterSet> ClassOf(char letter) {
  switch (letter) {
    case 'd':
      return DigitCharacters();
    case 'D':
      return DigitCharacters().Complement();
    case 'w':
      return WordCharacters();
    case 'W':
      return WordCharacters().Complement();
    case 's':
      return SpaceCharacters();
    case 'S':
      return SpaceCharacters().Complement();
    default:
      return std::nullopt;
  }
}

// The control character that \ and `letter` stand for, if they do.
std::optional<char32_t> ControlOf(char letter) {
  switch (letter) {
    case 'f':
      return '\f';
    case 'n':
      return '\n';
    case 'r':
      return '\r';
    case 't':
      return '\t';
    case 'v':
      return '\v';
    default:
      return std::nullopt;
  }
}

bool IsHighSurrogate(char32_t c) { return c >= 0xD800 && c <= 0xDBFF; }
bool IsLowSurrogate(char32_t c) { return c >= 0xDC00 && c <= 0xDFFF; }

// One escape, the backslash of which stands at `begin`.
class PatternEscape final {
 public:
  PatternEscape(absl::string_view in, size_t begin)
      : in_(in), begin_(begin), at_(begin + 1) {}

  absl::StatusOr<PatternCharacter> Take(bool in_class);
  size_t end() const { return at_; }

 private:
  bool NextIsDigit() const {
    return at_ < in_.size() && absl::ascii_isdigit(in_[at_]);
  }
  absl::Status Malformed() const {
    return MalformedPattern(absl::StrCat("a malformed ", in_.substr(begin_, 2)),
                            begin_);
  }
  absl::Status Unknown(absl::string_view what) const {
    return UnknownInPattern(what, begin_);
  }

  absl::StatusOr<PatternCharacter> TakeLetter(char letter);
  absl::StatusOr<char32_t> TakeHex(size_t digits);
  absl::StatusOr<char32_t> TakeUnicode();
  absl::StatusOr<char32_t> TakeBracedUnicode();

  const absl::string_view in_;
  const size_t begin_;
  size_t at_;
};

absl::StatusOr<PatternCharacter> PatternEscape::Take(bool in_class) {
  if (at_ == in_.size()) {
    return MalformedPattern("a \\ with nothing behind it", begin_);
  }
  const char letter = in_[at_];
  if (!absl::ascii_isalnum(letter)) {
    const Utf8Step step = NextUtf8(in_, at_);
    at_ += static_cast<size_t>(step.size);
    return OneCharacter(step.code_point);
  }
  ++at_;
  if (letter == '0' && !NextIsDigit()) return OneCharacter(0);
  if (letter == '0' || (in_class && absl::ascii_isdigit(letter))) {
    return Unknown("an octal escape");
  }
  if (absl::ascii_isdigit(letter) || letter == 'k') {
    return Unknown("a back reference");
  }
  if (letter == 'b' && in_class) return OneCharacter('\b');
  return TakeLetter(letter);
}

absl::StatusOr<PatternCharacter> PatternEscape::TakeLetter(char letter) {
  if (std::optional<CharacterSet> set = ClassOf(letter)) {
    PatternCharacter result;
    result.set = *std::move(set);
    return result;
  }
  if (const std::optional<char32_t> control = ControlOf(letter)) {
    return OneCharacter(*control);
  }
  switch (letter) {
    case 'c':
      if (at_ == in_.size() || !absl::ascii_isalpha(in_[at_])) {
        return Malformed();
      }
      return OneCharacter(static_cast<char32_t>(in_[at_++] & 0x1F));
    case 'x': {
      BATON_ASSIGN_OR_RETURN(const char32_t character, TakeHex(2));
      return OneCharacter(character);
    }
    case 'u': {
      BATON_ASSIGN_OR_RETURN(const char32_t character, TakeUnicode());
      return OneCharacter(character);
    }
    case 'b':
    case 'B':
      return Unknown("a word boundary");
    case 'p':
    case 'P':
      return Unknown("a Unicode property");
    default:
      return Unknown(absl::StrCat("a \\", in_.substr(begin_ + 1, 1)));
  }
}

absl::StatusOr<char32_t> PatternEscape::TakeHex(size_t digits) {
  char32_t number = 0;
  for (size_t i = 0; i < digits; ++i, ++at_) {
    if (at_ == in_.size() || !absl::ascii_isxdigit(in_[at_])) {
      return Malformed();
    }
    const char digit = absl::ascii_tolower(in_[at_]);
    const int value =
        absl::ascii_isdigit(digit) ? digit - '0' : digit - 'a' + 10;
    number = number * 16 + static_cast<char32_t>(value);
  }
  return number;
}

absl::StatusOr<char32_t> PatternEscape::TakeUnicode() {
  if (at_ < in_.size() && in_[at_] == '{') return TakeBracedUnicode();
  BATON_ASSIGN_OR_RETURN(const char32_t first, TakeHex(4));
  if (IsLowSurrogate(first)) return Malformed();
  if (!IsHighSurrogate(first)) return first;
  // A surrogate pair: one character.
  if (!absl::StartsWith(in_.substr(at_), "\\u")) return Malformed();
  at_ += 2;
  BATON_ASSIGN_OR_RETURN(const char32_t second, TakeHex(4));
  if (!IsLowSurrogate(second)) return Malformed();
  return 0x10000 + ((first & 0x3FF) << 10) + (second & 0x3FF);
}

absl::StatusOr<char32_t> PatternEscape::TakeBracedUnicode() {
  const size_t first_digit = ++at_;
  char32_t number = 0;
  while (at_ < in_.size() && absl::ascii_isxdigit(in_[at_])) {
    BATON_ASSIGN_OR_RETURN(const char32_t digit, TakeHex(1));
    number = number * 16 + digit;
    if (number > CharacterSet::kLast) return Malformed();
  }
  const bool is_closed = at_ < in_.size() && in_[at_] == '}';
  if (!is_closed || at_ == first_digit || IsHighSurrogate(number) ||
      IsLowSurrogate(number)) {
    return Malformed();
  }
  ++at_;
  return number;
}

}  // namespace

absl::StatusOr<PatternCharacter> TakePatternCharacter(absl::string_view pattern,
                                                      bool in_class,
                                                      size_t* at) {
  if (pattern[*at] == '\\') {
    PatternEscape escape(pattern, *at);
    absl::StatusOr<PatternCharacter> character = escape.Take(in_class);
    *at = escape.end();
    return character;
  }
  const Utf8Step step = NextUtf8(pattern, *at);
  *at += static_cast<size_t>(step.size);
  return OneCharacter(step.code_point);
}

}  // namespace baton::router
