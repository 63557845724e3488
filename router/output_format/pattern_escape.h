// The smallest parts of a regular expression: characters and escapes. Any
// thread.
#pragma once

#include <cstddef>
#include <optional>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "router/output_format/characters.h"

namespace baton::router {

struct PatternCharacter {
  CharacterSet set;
  std::optional<char32_t> one;  // if it is this one, and not a class as \d is
};

// What stands at pattern[*at], a character or an escape, the other meanings of
// which do not apply; *at is behind it afterwards. Within a class, \b is a
// backspace. REQUIRES: *at is within the pattern, which is UTF-8.
absl::StatusOr<PatternCharacter> TakePatternCharacter(absl::string_view pattern,
                                                      bool in_class,
                                                      size_t* at);

}  // namespace baton::router
