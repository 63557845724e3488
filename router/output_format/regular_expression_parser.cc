#include "router/output_format/regular_expression_parser.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "common/utf8.h"
#include "router/output_format/pattern_escape.h"
#include "scheduling/grammar.h"

namespace baton::router {
namespace {

// Of a quantifier, as written.
struct Repetition {
  uint32_t least = 0;
  uint32_t most = 0;
  size_t size = 0;  // in bytes, without a ? behind it
};

// ECMAScript's: all but its line terminators.
CharacterSet DotCharacters() {
  CharacterSet terminators;
  terminators.Add('\n', '\n');
  terminators.Add('\r', '\r');
  terminators.Add(0x2028, 0x2029);
  return terminators.Complement();
}

// One pass over the pattern; each Take function reads what it is named after
// and leaves at_ behind it.
class PatternParser final {
 public:
  explicit PatternParser(absl::string_view pattern) : in_(pattern) {}

  absl::StatusOr<PatternNode> Run() {
    BATON_ASSIGN_OR_RETURN(PatternNode all, TakeChoice());
    if (at_ < in_.size()) return MalformedPattern("a ) without a (", at_);
    return all;
  }

 private:
  bool AtEnd() const { return at_ >= in_.size(); }
  bool Next(absl::string_view text) const {
    return absl::StartsWith(in_.substr(at_), text);
  }
  bool Take(absl::string_view text) {
    if (!Next(text)) return false;
    at_ += text.size();
    return true;
  }
  PatternNode NodeHere(PatternNode::Kind kind) const {
    PatternNode node;
    node.kind = kind;
    node.at = at_;
    return node;
  }

  absl::StatusOr<PatternNode> TakeChoice();
  absl::StatusOr<PatternNode> TakeSequence();
  absl::StatusOr<PatternNode> TakeAtom();
  absl::StatusOr<PatternNode> TakeGroup();
  absl::Status TakeGroupKind();
  absl::Status TakeGroupName(size_t group);
  absl::StatusOr<PatternNode> TakeRepetition(PatternNode part);
  absl::StatusOr<std::optional<Repetition>> FindRepetition() const;
  absl::StatusOr<std::optional<Repetition>> FindBraces() const;
  bool NextIsPosixClass() const;
  absl::StatusOr<CharacterSet> TakeClass();
  absl::Status TakeClassMember(CharacterSet* set);
  absl::StatusOr<PatternCharacter> TakeClassAtom();

  const absl::string_view in_;
  size_t at_ = 0;
  int depth_ = 0;
};

absl::StatusOr<PatternNode> PatternParser::TakeChoice() {
  PatternNode choice = NodeHere(PatternNode::Kind::kChoice);
  do {
    BATON_ASSIGN_OR_RETURN(PatternNode sequence, TakeSequence());
    choice.parts.push_back(std::move(sequence));
  } while (Take("|"));
  return choice;
}

absl::StatusOr<PatternNode> PatternParser::TakeSequence() {
  PatternNode sequence = NodeHere(PatternNode::Kind::kSequence);
  while (!AtEnd() && !Next("|") && !Next(")")) {
    if (Next("^") || Next("$")) {
      sequence.parts.push_back(NodeHere(Next("^") ? PatternNode::Kind::kBegin
                                                  : PatternNode::Kind::kEnd));
      ++at_;
      continue;
    }
    BATON_ASSIGN_OR_RETURN(const std::optional<Repetition> repetition,
                           FindRepetition());
    if (repetition.has_value()) {
      return MalformedPattern("a quantifier with nothing to repeat", at_);
    }
    BATON_ASSIGN_OR_RETURN(PatternNode atom, TakeAtom());
    BATON_ASSIGN_OR_RETURN(PatternNode part, TakeRepetition(std::move(atom)));
    sequence.parts.push_back(std::move(part));
  }
  return sequence;
}

absl::StatusOr<PatternNode> PatternParser::TakeAtom() {
  if (Next("(")) return TakeGroup();
  PatternNode node = NodeHere(PatternNode::Kind::kCharacter);
  if (Take("[")) {
    BATON_ASSIGN_OR_RETURN(node.characters, TakeClass());
  } else if (Take(".")) {
    node.characters = DotCharacters();
  } else {
    BATON_ASSIGN_OR_RETURN(PatternCharacter character,
                           TakePatternCharacter(in_, /*in_class=*/false, &at_));
    node.characters = std::move(character.set);
  }
  return node;
}

absl::StatusOr<PatternNode> PatternParser::TakeGroup() {
  const size_t begin = at_;
  if (depth_ == kMaxPatternDepth) {
    return MalformedPattern(
        absl::StrCat("groups more than ", kMaxPatternDepth, " deep"), begin);
  }
  BATON_RETURN_IF_ERROR(TakeGroupKind());
  ++depth_;
  BATON_ASSIGN_OR_RETURN(PatternNode choice, TakeChoice());
  --depth_;
  if (!Take(")")) return MalformedPattern("an unclosed group", begin);
  choice.at = begin;
  return choice;
}

absl::Status PatternParser::TakeGroupKind() {
  const size_t begin = at_++;
  if (!Take("?") || Take(":")) return absl::OkStatus();
  if (Next("=") || Next("!")) return UnknownInPattern("a look-ahead", begin);
  if (Next("<=") || Next("<!")) return UnknownInPattern("a look-behind", begin);
  if (Take("P<") || Take("<")) return TakeGroupName(begin);
  if (Next("P=")) return UnknownInPattern("a back reference", begin);
  if (Next(">")) return UnknownInPattern("an atomic group", begin);
  if (!AtEnd() && (absl::ascii_isalpha(in_[at_]) || Next("-"))) {
    return UnknownInPattern("flags", begin);
  }
  return UnknownInPattern("a group of another kind", begin);
}

absl::Status PatternParser::TakeGroupName(size_t group) {
  const size_t begin = at_;
  const auto is_of_name = [](unsigned char c) {
    return absl::ascii_isalnum(c) || c == '_' || c == '$' || c >= 0x80;
  };
  while (!AtEnd() && is_of_name(static_cast<unsigned char>(in_[at_]))) ++at_;
  const bool is_name = at_ > begin && !absl::ascii_isdigit(in_[begin]);
  if (!is_name || !Take(">")) {
    return MalformedPattern("a group with a bad name", group);
  }
  return absl::OkStatus();
}

absl::StatusOr<PatternNode> PatternParser::TakeRepetition(PatternNode part) {
  BATON_ASSIGN_OR_RETURN(const std::optional<Repetition> repetition,
                         FindRepetition());
  if (!repetition.has_value()) return part;
  PatternNode repeat = NodeHere(PatternNode::Kind::kRepeat);
  repeat.at = part.at;
  repeat.least = repetition->least;
  repeat.most = repetition->most;
  repeat.parts.push_back(std::move(part));
  at_ += repetition->size;
  Take("?");  // lazy: says which match is found first, not which there are
  BATON_ASSIGN_OR_RETURN(const std::optional<Repetition> another,
                         FindRepetition());
  if (another.has_value()) {
    return MalformedPattern("a quantifier behind a quantifier", at_);
  }
  return repeat;
}

// The quantifier that comes next, if one does.
absl::StatusOr<std::optional<Repetition>> PatternParser::FindRepetition()
    const {
  constexpr uint32_t kAny = scheduling::kAnyNumber;
  if (Next("*")) return Repetition{0, kAny, 1};
  if (Next("+")) return Repetition{1, kAny, 1};
  if (Next("?")) return Repetition{0, 1, 1};
  if (Next("{")) return FindBraces();
  return std::nullopt;
}

// As FindRepetition. Braces that are none stand for themselves.
absl::StatusOr<std::optional<Repetition>> PatternParser::FindBraces() const {
  const size_t close = in_.find('}', at_);
  if (close == absl::string_view::npos) return std::nullopt;
  const absl::string_view inside = in_.substr(at_ + 1, close - at_ - 1);
  if (inside.find_first_not_of("0123456789,") != absl::string_view::npos) {
    return std::nullopt;
  }
  const size_t comma = inside.find(',');
  const absl::string_view least = inside.substr(0, comma);
  const absl::string_view most =
      comma == absl::string_view::npos ? least : inside.substr(comma + 1);
  if (absl::StrContains(most, ',')) return std::nullopt;
  if (least.empty()) {
    if (most.empty()) return std::nullopt;
    // Python repeats, ECMAScript takes it literally.
    return UnknownInPattern("a repetition without a lower bound", at_);
  }
  const auto number_of = [](absl::string_view digits) {
    uint32_t number = 0;
    return absl::SimpleAtoi(digits, &number) ? number : kMaxPatternRepeat + 1;
  };
  Repetition repetition{number_of(least), scheduling::kAnyNumber,
                        close + 1 - at_};
  if (!most.empty()) repetition.most = number_of(most);
  if (repetition.least > kMaxPatternRepeat ||
      (!most.empty() && repetition.most > kMaxPatternRepeat)) {
    return MalformedPattern(
        absl::StrCat("a repetition of more than ", kMaxPatternRepeat), at_);
  }
  if (repetition.least > repetition.most) {
    return MalformedPattern("a repetition with its bounds out of order", at_);
  }
  return repetition;
}

// As [:alpha:] is within [[:alpha:]_]. ECMAScript takes it for the characters
// that it is written with, which nobody means.
bool PatternParser::NextIsPosixClass() const {
  if (!Next("[:")) return false;
  size_t end = at_ + 2;
  while (end < in_.size() && absl::ascii_isalpha(in_[end])) ++end;
  return end > at_ + 2 && absl::StartsWith(in_.substr(end), ":]");
}

// From behind its bracket.
absl::StatusOr<CharacterSet> PatternParser::TakeClass() {
  const size_t begin = at_ - 1;
  const bool negated = Take("^");
  if (Next("]")) {
    // Python takes the bracket literally, in ECMAScript the class is empty.
    return UnknownInPattern("a class that begins with ]", begin);
  }
  CharacterSet set;
  while (!Take("]")) {
    if (AtEnd()) return MalformedPattern("an unclosed class", begin);
    if (NextIsPosixClass()) return UnknownInPattern("a POSIX class", at_);
    if (Next("&&")) return UnknownInPattern("an intersection of classes", at_);
    BATON_RETURN_IF_ERROR(TakeClassMember(&set));
  }
  return negated ? set.Complement() : std::move(set);
}

// A character, a range or a class escape.
absl::Status PatternParser::TakeClassMember(CharacterSet* set) {
  const size_t begin = at_;
  BATON_ASSIGN_OR_RETURN(PatternCharacter first, TakeClassAtom());
  set->Add(first.set);
  if (!Next("-") || Next("-]")) return absl::OkStatus();
  ++at_;
  if (AtEnd()) return absl::OkStatus();  // unclosed, says the caller
  BATON_ASSIGN_OR_RETURN(PatternCharacter last, TakeClassAtom());
  if (!first.one.has_value() || !last.one.has_value()) {
    // [\w-.]: no range; ECMAScript (annex B.1.4) takes the dash literally.
    set->Add('-', '-');
    set->Add(last.set);
    return absl::OkStatus();
  }
  if (*first.one > *last.one) {
    return MalformedPattern("a range out of order", begin);
  }
  set->Add(*first.one, *last.one);
  return absl::OkStatus();
}

absl::StatusOr<PatternCharacter> PatternParser::TakeClassAtom() {
  return TakePatternCharacter(in_, /*in_class=*/true, &at_);
}

}  // namespace

absl::Status MalformedPattern(absl::string_view what, size_t at) {
  return absl::InvalidArgumentError(
      absl::StrCat("has ", what, " at byte ", at));
}

absl::Status UnknownInPattern(absl::string_view what, size_t at) {
  return absl::UnimplementedError(absl::StrCat("has ", what, " at byte ", at,
                                               ", which Baton does not know"));
}

absl::StatusOr<PatternNode> ParsePattern(absl::string_view pattern) {
  if (pattern.size() > kMaxPatternBytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "has ", pattern.size(), " bytes, and a regular expression may have ",
        kMaxPatternBytes));
  }
  const size_t valid = ValidUtf8Length(pattern, 0);
  if (valid < pattern.size()) {
    return MalformedPattern("what is not UTF-8", valid);
  }
  return PatternParser(pattern).Run();
}

}  // namespace baton::router
