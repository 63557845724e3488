#include "router/text/text_pattern.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/log.h"
#include "common/status_macros.h"
#include "common/utf8.h"

namespace baton::router {
namespace {

void FindLiteral(absl::string_view literal, absl::string_view text,
                 std::vector<MatchSpan>* spans) {
  size_t covered = 0;
  while (true) {
    const size_t begin = text.find(literal, covered);
    if (begin == absl::string_view::npos) break;
    if (covered < begin) spans->push_back({covered, begin, false});
    covered = begin + literal.size();
    spans->push_back({begin, covered, true});
  }
  if (covered < text.size()) spans->push_back({covered, text.size(), false});
}

void FindCharacters(TextPattern::CharacterClass characters,
                    absl::string_view text, std::vector<MatchSpan>* spans) {
  size_t covered = 0;
  for (size_t at = 0; at < text.size();) {
    const Utf8Step step = NextUtf8(text, at);
    if (characters(step.code_point)) {
      if (covered < at) spans->push_back({covered, at, false});
      covered = at + step.size;
      spans->push_back({at, covered, true});
    }
    at += step.size;
  }
  if (covered < text.size()) spans->push_back({covered, text.size(), false});
}

// Joins each delimiter that follows a non-delimiter to it. With the spans in
// reverse order, that is the non-delimiter after it in the text.
std::vector<TextSpan> MergeDelimiters(const std::vector<MatchSpan>& spans,
                                      bool invert) {
  std::vector<TextSpan> pieces;
  bool after_delimiter = false;
  for (const MatchSpan& span : spans) {
    const bool is_delimiter = span.is_match != invert;
    if (is_delimiter && !after_delimiter && !pieces.empty()) {
      pieces.back().begin = std::min(pieces.back().begin, span.begin);
      pieces.back().end = std::max(pieces.back().end, span.end);
    } else {
      pieces.push_back({span.begin, span.end});
    }
    after_delimiter = is_delimiter;
  }
  return pieces;
}

std::vector<TextSpan> MergeRuns(const std::vector<MatchSpan>& spans,
                                bool invert) {
  std::vector<TextSpan> pieces;
  bool run_is_delimiter = false;
  for (const MatchSpan& span : spans) {
    const bool is_delimiter = span.is_match != invert;
    if (is_delimiter == run_is_delimiter && !pieces.empty()) {
      pieces.back().end = span.end;
    } else {
      pieces.push_back({span.begin, span.end});
    }
    run_is_delimiter = is_delimiter;
  }
  return pieces;
}

}  // namespace

TextPattern::TextPattern(std::string literal) : pattern_(std::move(literal)) {
  CHECK(!std::get<std::string>(pattern_).empty());
}
TextPattern::TextPattern(CharacterClass characters) : pattern_(characters) {}
TextPattern::TextPattern(Regex regex) : pattern_(std::move(regex)) {}

absl::StatusOr<TextPattern> TextPattern::FromJson(const JsonNode& node) {
  if (node.Has("String")) {
    BATON_ASSIGN_OR_RETURN(std::string literal, node.String("String"));
    if (literal.empty()) return node.Unsupported("String");
    return TextPattern(std::move(literal));
  }
  if (!node.Has("Regex")) {
    return node.Invalid("has neither \"String\" nor \"Regex\"");
  }
  BATON_ASSIGN_OR_RETURN(const JsonNode regex_node, node.Field("Regex"));
  BATON_ASSIGN_OR_RETURN(const std::string source, regex_node.AsString());
  absl::StatusOr<Regex> regex = Regex::Compile(source);
  if (!regex.ok()) {
    const absl::Status place = regex_node.Invalid(regex.status().message());
    return absl::Status(regex.status().code(), place.message());
  }
  return TextPattern(*std::move(regex));
}

absl::Status TextPattern::FindAll(absl::string_view text,
                                  std::vector<MatchSpan>* spans) const {
  if (const Regex* regex = std::get_if<Regex>(&pattern_)) {
    return regex->FindAll(text, spans);
  }
  if (const std::string* literal = std::get_if<std::string>(&pattern_)) {
    FindLiteral(*literal, text, spans);
  } else {
    FindCharacters(std::get<CharacterClass>(pattern_), text, spans);
  }
  return absl::OkStatus();
}

absl::StatusOr<SplitBehavior> SplitBehaviorFromJson(const JsonNode& node,
                                                    absl::string_view field) {
  BATON_ASSIGN_OR_RETURN(const std::string name, node.String(field));
  if (name == "Removed") return SplitBehavior::kRemoved;
  if (name == "Isolated") return SplitBehavior::kIsolated;
  if (name == "MergedWithPrevious") return SplitBehavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return SplitBehavior::kMergedWithNext;
  if (name == "Contiguous") return SplitBehavior::kContiguous;
  return node.Unsupported(field);
}

std::vector<TextSpan> SplitAtMatches(const std::vector<MatchSpan>& matches,
                                     SplitBehavior behavior, bool invert) {
  std::vector<TextSpan> pieces;
  switch (behavior) {
    case SplitBehavior::kRemoved:
      for (const MatchSpan& span : matches) {
        if (span.is_match == invert) pieces.push_back({span.begin, span.end});
      }
      break;
    case SplitBehavior::kIsolated:
      for (const MatchSpan& span : matches) {
        pieces.push_back({span.begin, span.end});
      }
      break;
    case SplitBehavior::kMergedWithPrevious:
      pieces = MergeDelimiters(matches, invert);
      break;
    case SplitBehavior::kMergedWithNext: {
      pieces = MergeDelimiters({matches.rbegin(), matches.rend()}, invert);
      std::reverse(pieces.begin(), pieces.end());
      break;
    }
    case SplitBehavior::kContiguous:
      pieces = MergeRuns(matches, invert);
      break;
  }
  std::erase_if(pieces,
                [](const TextSpan& span) { return span.begin == span.end; });
  return pieces;
}

}  // namespace baton::router
