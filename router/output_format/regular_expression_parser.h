// The structure of a regular expression: what regular_expression.h allows, as a
// tree. Any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "router/output_format/characters.h"

namespace baton::router {

// The longest pattern, how deep its groups may be nested, and the highest bound
// of a repetition.
inline constexpr size_t kMaxPatternBytes = 16 * 1024;
inline constexpr int kMaxPatternDepth = 200;
inline constexpr uint32_t kMaxPatternRepeat = 10'000;

struct PatternNode {
  enum class Kind {
    kCharacter,  // one character of a set
    kBegin,      // ^
    kEnd,        // $
    kSequence,   // its parts, one after another
    kChoice,     // one of its parts, all of which are sequences: a group
    kRepeat,     // its one part, `least` to `most` times
  };
  Kind kind = Kind::kSequence;
  size_t at = 0;  // the byte of the pattern where it begins
  CharacterSet characters;
  std::vector<PatternNode> parts;
  uint32_t least = 0;
  uint32_t most = 0;  // scheduling::kAnyNumber: any number
};

// A kChoice, or an error as WriteRegularExpression has it; ^ and $ may stand
// anywhere.
absl::StatusOr<PatternNode> ParsePattern(absl::string_view pattern);

// The errors of a pattern: "has `what` at byte `at`".
absl::Status MalformedPattern(absl::string_view what, size_t at);
absl::Status UnknownInPattern(absl::string_view what, size_t at);

}  // namespace baton::router
