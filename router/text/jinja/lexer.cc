#include "router/text/jinja/lexer.h"

#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "common/utf8.h"
#include "router/text/jinja/python_text.h"
#include "router/text/jinja/string_literal.h"

namespace baton::router::jinja {
namespace {

// The longer ones first.
constexpr std::array<absl::string_view, 26> kOperators = {
    "//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[",
    "]",  "(",  ")",  "{",  "}",  ">",  "<", "=", ".", ":", "|", ",", ";"};

// Lines end in "\n", and the last one without.
std::string Normalized(absl::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] != '\r') {
      out.push_back(source[i]);
      continue;
    }
    out.push_back('\n');
    if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
  }
  if (!out.empty() && out.back() == '\n') out.pop_back();
  return out;
}

bool IsDigit(char c) { return absl::ascii_isdigit(c); }

class Lexer final {
 public:
  explicit Lexer(absl::string_view source) : source_(source) {}

  absl::StatusOr<std::vector<Token>> Run() {
    while (at_ < source_.size()) {
      const size_t tag = FindTag();
      if (tag == std::string::npos) {
        AddData(source_.substr(at_));
        Advance(source_.size());
        break;
      }
      BATON_RETURN_IF_ERROR(LexTag(tag));
    }
    Add(TokenType::kEnd, "");
    return std::move(tokens_);
  }

 private:
  absl::Status Fail(absl::string_view what) const {
    return SourceError(line_, what);
  }

  char At(size_t at) const { return at < source_.size() ? source_[at] : '\0'; }
  bool Has(size_t at, absl::string_view text) const {
    return source_.substr(std::min(at, source_.size()), text.size()) == text;
  }

  // Goes on at `to`, counting lines.
  void Advance(size_t to) {
    line_ += static_cast<int>(
        std::count(source_.begin() + at_, source_.begin() + to, '\n'));
    if (to > at_) line_starting_ = source_[to - 1] == '\n';
    at_ = to;
  }

  size_t SkipSpace(size_t at) const {
    const absl::string_view rest = source_.substr(at);
    return at + (rest.size() - Strip(rest, Side::kLeft, std::nullopt).size());
  }

  Token& Add(TokenType type, absl::string_view text) {
    Token token;
    token.type = type;
    token.text = std::string(text);
    token.line = line_;
    tokens_.push_back(std::move(token));
    return tokens_.back();
  }

  void AddData(absl::string_view text) {
    if (!text.empty()) Add(TokenType::kData, text);
  }

  // Where the next "{{", "{%" or "{#" begins.
  size_t FindTag() const {
    for (size_t at = source_.find('{', at_); at != std::string::npos;
         at = source_.find('{', at + 1)) {
      const char next = At(at + 1);
      if (next == '{' || next == '%' || next == '#') return at;
    }
    return std::string::npos;
  }

  // The text before a tag, as the tag's sign leaves it.
  absl::string_view DataBefore(size_t tag, char sign, bool is_variable) const {
    const absl::string_view text = source_.substr(at_, tag - at_);
    if (sign == '-') return Strip(text, Side::kRight, std::nullopt);
    if (sign == '+' || is_variable) return text;
    const size_t newline = text.rfind('\n');
    const size_t line = newline == std::string::npos ? 0 : newline + 1;
    if (line == 0 && !line_starting_) return text;
    const bool blank =
        Strip(text.substr(line), Side::kLeft, std::nullopt).empty();
    return blank ? text.substr(0, line) : text;
  }

  absl::Status LexTag(size_t tag) {
    const char kind = source_[tag + 1];
    const char sign =
        At(tag + 2) == '-' || At(tag + 2) == '+' ? At(tag + 2) : 0;
    const size_t inside = tag + 2 + (sign != 0 ? 1 : 0);
    const absl::string_view data = DataBefore(tag, sign, kind == '{');
    AddData(data);
    Advance(tag);
    if (kind == '#') return LexComment(inside);
    if (kind == '%') {
      const size_t raw = RawBegin(inside);
      if (raw != 0) return LexRaw(raw);
    }
    Add(kind == '{' ? TokenType::kVariableBegin : TokenType::kBlockBegin, "");
    Advance(inside);
    return LexInside(kind == '{');
  }

  // Where a block tag that ends at `end` (its "%}" or "#}") lets the text go
  // on: a minus eats white space, and without a plus goes one line end.
  size_t After(size_t end, char sign) const {
    if (sign == '-') return SkipSpace(end);
    return sign != '+' && At(end) == '\n' ? end + 1 : end;
  }

  absl::Status LexComment(size_t inside) {
    const size_t close = source_.find("#}", inside);
    if (close == std::string::npos) {
      return Fail("a comment that begins here has no end");
    }
    const char before = close > inside ? source_[close - 1] : '\0';
    Advance(After(close + 2, before));
    return absl::OkStatus();
  }

  // Where the text begins behind "raw %}"; 0 where that does not stand here.
  size_t RawBegin(size_t inside) const {
    size_t at = SkipSpace(inside);
    if (!Has(at, "raw")) return 0;
    at = SkipSpace(at + 3);
    if (Has(at, "-%}")) return SkipSpace(at + 3);
    return Has(at, "%}") ? at + 2 : 0;
  }

  absl::Status LexRaw(size_t begin) {
    const int line = line_;
    Advance(begin);
    for (size_t tag = source_.find("{%", begin); tag != std::string::npos;
         tag = source_.find("{%", tag + 1)) {
      const char sign =
          At(tag + 2) == '-' || At(tag + 2) == '+' ? At(tag + 2) : 0;
      size_t at =
          SkipSpace(std::min(tag + 2 + (sign != 0 ? 1 : 0), source_.size()));
      if (!Has(at, "endraw")) continue;
      at = SkipSpace(at + 6);
      const char end_sign = At(at) == '-' || At(at) == '+' ? At(at) : 0;
      if (end_sign != 0) ++at;
      if (!Has(at, "%}")) continue;
      AddData(DataBefore(tag, sign, /*is_variable=*/false));
      Advance(After(at + 2, end_sign));
      return absl::OkStatus();
    }
    return SourceError(line, "a raw block that begins here has no end");
  }

  // The end of the tag, if it stands here and no bracket is open.
  bool LexTagEnd(bool is_variable) {
    if (!open_.empty()) return false;
    const char sign = At(at_) == '-' || At(at_) == '+' ? At(at_) : 0;
    const size_t end = at_ + (sign != 0 ? 1 : 0);
    if (!Has(end, is_variable ? "}}" : "%}")) return false;
    if (is_variable) {
      if (sign == '+') return false;
      Add(TokenType::kVariableEnd, "");
      Advance(sign == '-' ? SkipSpace(end + 2) : end + 2);
    } else {
      Add(TokenType::kBlockEnd, "");
      Advance(After(end + 2, sign));
    }
    return true;
  }

  absl::Status LexInside(bool is_variable) {
    open_.clear();
    while (at_ < source_.size()) {
      if (LexTagEnd(is_variable)) return absl::OkStatus();
      const size_t next = SkipSpace(at_);
      if (next > at_) {
        Advance(next);
        continue;
      }
      if (LexFloat()) continue;
      const char c = source_[at_];
      if (IsDigit(c)) {
        BATON_RETURN_IF_ERROR(LexInteger());
      } else if (c == '\'' || c == '"') {
        BATON_RETURN_IF_ERROR(LexString(c));
      } else if (const size_t size = NameSize(); size > 0) {
        Add(TokenType::kName, source_.substr(at_, size));
        Advance(at_ + size);
      } else {
        BATON_RETURN_IF_ERROR(LexOperator());
      }
    }
    return absl::OkStatus();  // The parser misses the end.
  }

  // Digits with single underscores between them, from `at`; where they end.
  size_t SkipDigits(size_t at) const {
    while (IsDigit(At(at)) || (At(at) == '_' && IsDigit(At(at + 1)) && at > 0 &&
                               IsDigit(At(at - 1)))) {
      ++at;
    }
    return at;
  }

  bool LexFloat() {
    if (!IsDigit(source_[at_]) || (at_ > 0 && source_[at_ - 1] == '.')) {
      return false;
    }
    size_t end = SkipDigits(at_);
    bool is_float = false;
    if (At(end) == '.' && IsDigit(At(end + 1))) {
      end = SkipDigits(end + 1);
      is_float = true;
    }
    if (At(end) == 'e' || At(end) == 'E') {
      const bool has_sign = At(end + 1) == '+' || At(end + 1) == '-';
      const size_t digits = end + (has_sign ? 2 : 1);
      if (IsDigit(At(digits))) {
        end = SkipDigits(digits);
        is_float = true;
      }
    }
    if (!is_float) return false;
    Token& token = Add(TokenType::kFloat, source_.substr(at_, end - at_));
    token.number = ParseFloat(token.text).value_or(0);
    Advance(end);
    return true;
  }

  absl::Status LexInteger() {
    size_t end = at_;
    const char letter = absl::ascii_tolower(At(at_ + 1));
    if (source_[at_] == '0' &&
        (letter == 'x' || letter == 'o' || letter == 'b')) {
      end = at_ + 2;
      while (absl::ascii_isxdigit(At(end)) || At(end) == '_') ++end;
    } else if (source_[at_] == '0') {
      while (At(end) == '0' || At(end) == '_') ++end;
    } else {
      end = SkipDigits(at_);
    }
    const absl::string_view text = source_.substr(at_, end - at_);
    bool too_large = false;
    const std::optional<Integer> value =
        ParseInteger(text, /*base=*/0, &too_large);
    if (!value.has_value()) {
      return Fail(absl::StrCat("the number ", ShortText(text),
                               too_large ? " is too large" : " is malformed"));
    }
    Add(TokenType::kInteger, text).integer = *value;
    Advance(end);
    return absl::OkStatus();
  }

  absl::Status LexString(char quote) {
    size_t end = at_ + 1;
    while (end < source_.size() && source_[end] != quote) {
      end += source_[end] == '\\' ? 2 : 1;
    }
    if (end >= source_.size()) return Fail("a string has no end");
    absl::StatusOr<std::string> text =
        UnescapeString(source_.substr(at_ + 1, end - at_ - 1));
    if (!text.ok()) return Fail(text.status().message());
    Add(TokenType::kString, *text);
    Advance(end + 1);
    return absl::OkStatus();
  }

  size_t NameSize() const {
    size_t at = at_;
    while (at < source_.size()) {
      const Utf8Step step = NextUtf8(source_, at);
      if (!IsWordCharacterOfRe(step.code_point)) break;
      at += step.size;
    }
    return at - at_;
  }

  absl::Status LexOperator() {
    const auto it =
        std::find_if(kOperators.begin(), kOperators.end(),
                     [&](absl::string_view each) { return Has(at_, each); });
    if (it == kOperators.end()) {
      const Utf8Step step = NextUtf8(source_, at_);
      return Fail(absl::StrCat("unexpected character '",
                               source_.substr(at_, step.size), "'"));
    }
    const char c = (*it)[0];
    if (c == '(' || c == '[' || c == '{') {
      open_.push_back(c == '(' ? ')' : c == '[' ? ']' : '}');
    } else if (c == ')' || c == ']' || c == '}') {
      if (open_.empty() || open_.back() != c) {
        return Fail(open_.empty()
                        ? absl::StrCat("unexpected '", *it, "'")
                        : absl::StrCat("unexpected '", *it, "', expected '",
                                       std::string(1, open_.back()), "'"));
      }
      open_.pop_back();
    }
    Add(TokenType::kOperator, *it);
    Advance(at_ + it->size());
    return absl::OkStatus();
  }

  const absl::string_view source_;
  size_t at_ = 0;
  int line_ = 1;
  // Whether what was read last ended a line.
  bool line_starting_ = true;
  // The brackets that must still be closed in this tag.
  std::string open_;
  std::vector<Token> tokens_;
};

}  // namespace

absl::Status SourceError(int line, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("line ", line, ": ", what));
}

absl::StatusOr<std::vector<Token>> Tokenize(absl::string_view source) {
  const std::string normalized = Normalized(source);
  return Lexer(normalized).Run();
}

}  // namespace baton::router::jinja
