#include "router/text/regex_translation.h"

#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "common/status_macros.h"
#include "router/text/unicode_categories.h"

namespace baton::router {
namespace {

// Oniguruma's word characters (Unicode TR18): the inside of a class.
constexpr absl::string_view kWord = "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}";
constexpr absl::string_view kHexDigit = "0-9a-fA-F";

absl::Status Refuse(absl::string_view construct) {
  return absl::UnimplementedError(absl::StrCat(
      "the regular expression uses ", construct, ", which is not supported"));
}

absl::Status Broken(absl::string_view what) {
  return absl::InvalidArgumentError(
      absl::StrCat("the regular expression ", what));
}

// One pass over the pattern. The output of the last atom starts at
// out_[atom_], so that a quantifier can be wrapped around it.
class Translator final {
 public:
  explicit Translator(absl::string_view pattern) : in_(pattern) {}

  absl::StatusOr<std::string> Run() {
    while (at_ < in_.size()) BATON_RETURN_IF_ERROR(TranslateNext());
    if (groups_.size() > 1) return Broken("has a group that is not closed");
    CloseOptions();
    return std::move(out_);
  }

 private:
  struct Group {
    size_t begin;     // of the group in out_
    int options = 0;  // groups opened by (?i) and the like inside it
    bool any_case = false;
  };

  bool AtEnd() const { return at_ >= in_.size(); }
  bool Next(absl::string_view text) const {
    return absl::StartsWith(in_.substr(at_), text);
  }
  bool Take(absl::string_view text) {
    if (!Next(text)) return false;
    at_ += text.size();
    return true;
  }
  void EmitAtom(absl::string_view text) {
    atom_ = out_.size();
    absl::StrAppend(&out_, text);
  }
  void CloseOptions() {
    out_.append(groups_.back().options, ')');
    groups_.back().options = 0;
  }

  absl::Status TranslateNext();
  absl::Status TranslateGroupStart();
  absl::Status TranslateOptions();
  absl::Status TranslateGroupEnd();
  absl::Status TranslateBrace();
  absl::Status TranslateEscape();
  absl::Status TranslateClass();
  absl::Status TranslateIntersection(size_t begin);
  absl::Status TranslateClassEscape();
  absl::Status TranslatePosixClass();
  absl::StatusOr<std::string> TakeProperty(char letter);
  absl::StatusOr<std::string> TakeCodePoint(char letter);

  absl::string_view in_;
  size_t at_ = 0;
  std::string out_;
  size_t atom_ = 0;
  std::vector<Group> groups_ = {Group{0}};
  int intersections_ = 0;  // that are open
};

absl::Status Translator::TranslateNext() {
  switch (in_[at_]) {
    case '\\':
      return TranslateEscape();
    case '[':
      return TranslateClass();
    case '(':
      return TranslateGroupStart();
    case ')':
      return TranslateGroupEnd();
    case '{':
      return TranslateBrace();
    case '*':
    case '+':
    case '?':
      // Lazy and possessive suffixes of these three mean the same in both.
      out_.push_back(in_[at_++]);
      if (!AtEnd() && (in_[at_] == '+' || in_[at_] == '?')) {
        out_.push_back(in_[at_++]);
      }
      return absl::OkStatus();
    case '|':
      out_.push_back(in_[at_++]);
      atom_ = out_.size();
      return absl::OkStatus();
    default: {
      // A whole UTF-8 character is one atom.
      size_t size = 1;
      while (at_ + size < in_.size() &&
             (static_cast<unsigned char>(in_[at_ + size]) & 0xC0) == 0x80) {
        ++size;
      }
      EmitAtom(in_.substr(at_, size));
      at_ += size;
      return absl::OkStatus();
    }
  }
}

absl::Status Translator::TranslateGroupStart() {
  const size_t begin = out_.size();
  ++at_;
  if (Next("*")) return Refuse("(*");
  if (!Take("?")) {
    out_.push_back('(');
    groups_.push_back({begin, 0, groups_.back().any_case});
    return absl::OkStatus();
  }
  for (const absl::string_view kind : {":", "=", "!", ">", "<=", "<!"}) {
    if (Take(kind)) {
      absl::StrAppend(&out_, "(?", kind);
      groups_.push_back({begin, 0, groups_.back().any_case});
      return absl::OkStatus();
    }
  }
  return TranslateOptions();
}

absl::Status Translator::TranslateOptions() {
  const size_t begin = out_.size();
  out_.append("(?");
  bool on = true;
  bool any_case = groups_.back().any_case;
  for (; !AtEnd(); ++at_) {
    switch (in_[at_]) {
      case 'i':
        any_case = on;
        out_.push_back('i');
        break;
      case '-':
        on = false;
        out_.push_back('-');
        break;
      case 'm':
        out_.push_back('s');
        break;
      case ':':
        ++at_;
        out_.push_back(':');
        groups_.push_back({begin, 0, any_case});
        return absl::OkStatus();
      case ')':
        ++at_;
        out_.push_back(':');
        ++groups_.back().options;
        groups_.back().any_case = any_case;
        atom_ = out_.size();
        return absl::OkStatus();
      default:
        return Refuse(absl::StrCat("(?", in_.substr(at_, 1)));
    }
  }
  return Broken("has a group that is not closed");
}

absl::Status Translator::TranslateGroupEnd() {
  if (groups_.size() == 1) return Broken("has a \")\" without its \"(\"");
  CloseOptions();
  ++at_;
  out_.push_back(')');
  atom_ = groups_.back().begin;
  groups_.pop_back();
  return absl::OkStatus();
}

absl::Status Translator::TranslateBrace() {
  const size_t close = in_.find('}', at_);
  const absl::string_view inside = close == absl::string_view::npos
                                       ? absl::string_view()
                                       : in_.substr(at_ + 1, close - at_ - 1);
  const size_t comma = inside.find(',');
  const absl::string_view low = inside.substr(0, comma);
  const absl::string_view high =
      comma == absl::string_view::npos ? low : inside.substr(comma + 1);
  const auto digits = [](absl::string_view text) {
    return text.find_first_not_of("0123456789") == absl::string_view::npos;
  };
  if (!digits(low) || !digits(high) || (low.empty() && high.empty())) {
    ++at_;
    EmitAtom("\\{");  // not an interval: a literal brace
    return absl::OkStatus();
  }
  at_ = close + 1;
  absl::StrAppend(&out_, "{", low.empty() ? "0" : low);
  if (comma != absl::string_view::npos) absl::StrAppend(&out_, ",", high);
  out_.push_back('}');
  const bool repeated = Next("+");
  const bool optional = comma == absl::string_view::npos && Next("?");
  if (repeated || optional) {
    out_.insert(atom_, "(?:");
    absl::StrAppend(&out_, ")", in_.substr(at_++, 1));
  } else if (Take("?")) {
    out_.push_back('?');
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> Translator::TakeProperty(char letter) {
  if (!Take("{")) return Refuse(absl::StrFormat("\\%c without braces", letter));
  const size_t close = in_.find('}', at_);
  if (close == absl::string_view::npos) return Broken("has an open \\p{");
  absl::string_view name = in_.substr(at_, close - at_);
  at_ = close + 1;
  const bool negated = absl::ConsumePrefix(&name, "^") != (letter == 'P');
  for (const char c : name) {
    if (!absl::ascii_isalpha(c) && c != '_') {
      return Refuse(absl::StrCat("\\p{", name, "}"));
    }
  }
  const absl::string_view prefix = IsUnicodeProperty(name) ? "" : "sc:";
  return negated ? absl::StrFormat("\\P{%s%s}", prefix, name)
                 : absl::StrFormat("\\p{%s%s}", prefix, name);
}

absl::StatusOr<std::string> Translator::TakeCodePoint(char letter) {
  absl::string_view digits;
  if (letter == 'x' && Take("{")) {
    const size_t close = in_.find('}', at_);
    if (close == absl::string_view::npos) return Broken("has an open \\x{");
    digits = in_.substr(at_, close - at_);
    at_ = close + 1;
  } else {
    const size_t count = letter == 'u' ? 4 : 2;
    digits = in_.substr(at_, count);
    at_ += digits.size();
    if (digits.size() != count) return Broken("has a cut-off escape");
  }
  if (digits.empty() || digits.size() > 6) return Broken("has a bad escape");
  for (const char c : digits) {
    if (!absl::ascii_isxdigit(c)) return Broken("has a bad escape");
  }
  // Oniguruma takes \x80 and above as one byte of UTF-8.
  if (letter == 'x' && digits.size() == 2 && digits[0] >= '8') {
    return Refuse(absl::StrCat("\\x", digits));
  }
  return absl::StrCat("\\x{", digits, "}");
}

absl::Status Translator::TranslateEscape() {
  if (++at_ >= in_.size()) return Broken("ends in a backslash");
  const char letter = in_[at_++];
  const std::string word = absl::StrCat("[", kWord, "]");
  switch (letter) {
    case 's':
      EmitAtom("\\p{White_Space}");
      return absl::OkStatus();
    case 'S':
      EmitAtom("\\P{White_Space}");
      return absl::OkStatus();
    case 'd':
      EmitAtom("\\p{Nd}");
      return absl::OkStatus();
    case 'D':
      EmitAtom("\\P{Nd}");
      return absl::OkStatus();
    case 'w':
      EmitAtom(word);
      return absl::OkStatus();
    case 'W':
      EmitAtom(absl::StrCat("[^", kWord, "]"));
      return absl::OkStatus();
    case 'h':
      EmitAtom(absl::StrCat("[", kHexDigit, "]"));
      return absl::OkStatus();
    case 'H':
      EmitAtom(absl::StrCat("[^", kHexDigit, "]"));
      return absl::OkStatus();
    case 'b':
      EmitAtom(absl::StrCat("(?:(?<=", word, ")(?!", word, ")|(?<!", word,
                            ")(?=", word, "))"));
      return absl::OkStatus();
    case 'B':
      EmitAtom(absl::StrCat("(?:(?<=", word, ")(?=", word, ")|(?<!", word,
                            ")(?!", word, "))"));
      return absl::OkStatus();
    case 'v':
      EmitAtom("\\x{0B}");
      return absl::OkStatus();
    case 'p':
    case 'P': {
      BATON_ASSIGN_OR_RETURN(const std::string property, TakeProperty(letter));
      EmitAtom(property);
      return absl::OkStatus();
    }
    case 'x':
    case 'u': {
      BATON_ASSIGN_OR_RETURN(const std::string code, TakeCodePoint(letter));
      EmitAtom(code);
      return absl::OkStatus();
    }
    default:
      break;
  }
  const bool same_in_both =
      absl::StrContains("nrtfaeAzZ", letter) || absl::ascii_ispunct(letter);
  if (!same_in_both) return Refuse(absl::StrFormat("\\%c", letter));
  EmitAtom(absl::StrFormat("\\%c", letter));
  return absl::OkStatus();
}

absl::Status Translator::TranslateClassEscape() {
  if (++at_ >= in_.size()) return Broken("ends in a backslash");
  const char letter = in_[at_++];
  switch (letter) {
    case 's':
      out_.append("\\p{White_Space}");
      return absl::OkStatus();
    case 'S':
      out_.append("\\P{White_Space}");
      return absl::OkStatus();
    case 'd':
      out_.append("\\p{Nd}");
      return absl::OkStatus();
    case 'D':
      out_.append("\\P{Nd}");
      return absl::OkStatus();
    case 'w':
      absl::StrAppend(&out_, kWord);
      return absl::OkStatus();
    case 'h':
      absl::StrAppend(&out_, kHexDigit);
      return absl::OkStatus();
    case 'v':
      out_.append("\\x{0B}");
      return absl::OkStatus();
    case 'p':
    case 'P': {
      BATON_ASSIGN_OR_RETURN(const std::string property, TakeProperty(letter));
      out_.append(property);
      return absl::OkStatus();
    }
    case 'x':
    case 'u': {
      BATON_ASSIGN_OR_RETURN(const std::string code, TakeCodePoint(letter));
      out_.append(code);
      return absl::OkStatus();
    }
    default:
      break;
  }
  const bool same_in_both =
      absl::StrContains("nrtfae", letter) || absl::ascii_ispunct(letter);
  if (!same_in_both) {
    return Refuse(absl::StrFormat("\\%c in a character class", letter));
  }
  absl::StrAppendFormat(&out_, "\\%c", letter);
  return absl::OkStatus();
}

absl::Status Translator::TranslatePosixClass() {
  struct Name {
    absl::string_view posix;
    absl::string_view property;
  };
  constexpr Name kNames[] = {{"[:alpha:]", "\\p{Alphabetic}"},
                             {"[:alnum:]", "\\p{Alphabetic}\\p{Nd}"},
                             {"[:digit:]", "\\p{Nd}"},
                             {"[:lower:]", "\\p{Lowercase}"},
                             {"[:space:]", "\\p{White_Space}"},
                             {"[:upper:]", "\\p{Uppercase}"},
                             {"[:xdigit:]", kHexDigit}};
  for (const Name& name : kNames) {
    if (Take(name.posix)) {
      absl::StrAppend(&out_, name.property);
      return absl::OkStatus();
    }
  }
  return Refuse(in_.substr(at_, 12));
}

// `[a&&[b]]`, whose first set begins there in out_: `(?:(?=[b])[a])`, or one
// set, where `a` is of general categories and `b` negated.
absl::Status Translator::TranslateIntersection(size_t begin) {
  constexpr int kMostIntersections = 8;
  out_.push_back(']');
  const std::string first = out_.substr(begin);
  out_.resize(begin);
  if (first == "[]") return Refuse("&& behind nothing");
  if (++intersections_ > kMostIntersections) return Refuse("&& too deep");
  std::vector<std::string> sets;
  while (Take("&&")) {
    if (!Next("[") || Next("[:")) return Refuse("&& before other than a set");
    BATON_RETURN_IF_ERROR(TranslateClass());
    sets.push_back(out_.substr(begin));
    out_.resize(begin);
  }
  if (!Take("]")) return Refuse("a union of what && joins");
  --intersections_;
  atom_ = begin;
  // Where case does not count, other categories have the same letters.
  if (!groups_.back().any_case && sets.size() == 1 &&
      absl::StartsWith(sets[0], "[^")) {
    if (const auto others = OtherCategories(first)) {
      absl::StrAppend(&out_, "[^", *others, sets[0].substr(2));
      return absl::OkStatus();
    }
  }
  absl::StrAppend(&out_, "(?:");
  for (const std::string& set : sets) absl::StrAppend(&out_, "(?=", set, ")");
  absl::StrAppend(&out_, first, ")");
  return absl::OkStatus();
}

absl::Status Translator::TranslateClass() {
  const size_t begin = out_.size();
  atom_ = begin;
  ++at_;
  out_.push_back('[');
  if (Take("^")) out_.push_back('^');
  if (Take("]")) out_.append("\\]");
  // A set in a set is their union, so that its brackets can go.
  int depth = 1;
  while (!AtEnd()) {
    if (Next("&&")) {
      if (depth > 1 || absl::StartsWith(out_.substr(begin), "[^")) {
        return Refuse("&& in a set of a set, or in a negated one");
      }
      return TranslateIntersection(begin);
    }
    if (Next("[:")) {
      BATON_RETURN_IF_ERROR(TranslatePosixClass());
    } else if (in_[at_] == '\\') {
      BATON_RETURN_IF_ERROR(TranslateClassEscape());
    } else if (Take("[")) {
      if (Next("^")) return Refuse("a negated set in a character class");
      ++depth;
    } else if (Take("]")) {
      if (--depth == 0) {
        out_.push_back(']');
        return absl::OkStatus();
      }
    } else {
      out_.push_back(in_[at_++]);
    }
  }
  return Broken("has a character class that is not closed");
}

}  // namespace

absl::StatusOr<std::string> TranslateOniguruma(absl::string_view pattern) {
  return Translator(pattern).Run();
}

}  // namespace baton::router
