// What Split, Replace and their kin look for: a literal string, a regular
// expression or a class of characters; and how found delimiters split a text.
#pragma once

#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "router/text/json_node.h"
#include "router/text/regex.h"

namespace baton::router {

// Immutable; any thread.
class TextPattern final {
 public:
  using CharacterClass = bool (*)(char32_t code_point);

  // A pattern as tokenizer.json has it: {"String": "..."} or {"Regex": "..."}.
  static absl::StatusOr<TextPattern> FromJson(const JsonNode& node);

  // REQUIRES: literal is not empty.
  explicit TextPattern(std::string literal);
  explicit TextPattern(CharacterClass characters);
  explicit TextPattern(Regex regex);

  // As Regex::FindAll, for any kind of pattern. Each character of a class is a
  // match of its own. REQUIRES: `text` is valid UTF-8.
  absl::Status FindAll(absl::string_view text,
                       std::vector<MatchSpan>* spans) const;

 private:
  std::variant<std::string, Regex, CharacterClass> pattern_;
};

// What becomes of the delimiters when a text is split at them.
enum class SplitBehavior {
  kRemoved,
  kIsolated,
  kMergedWithPrevious,
  kMergedWithNext,
  kContiguous,
};

absl::StatusOr<SplitBehavior> SplitBehaviorFromJson(const JsonNode& node,
                                                    absl::string_view field);

struct TextSpan {
  size_t begin;
  size_t end;
};

// The pieces, from left to right and never empty, of a text whose `matches`
// (FindAll's) are its delimiters, or with `invert` everything but its
// delimiters.
std::vector<TextSpan> SplitAtMatches(const std::vector<MatchSpan>& matches,
                                     SplitBehavior behavior, bool invert);

}  // namespace baton::router
