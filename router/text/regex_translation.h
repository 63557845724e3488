// From the regular expressions of tokenizer.json files to PCRE2.
//
// Hugging Face compiles them with Oniguruma, whose syntax and character classes
// differ from PCRE2's in places where both accept the pattern. What differs is
// rewritten; what cannot be, is refused, so that a pattern never silently means
// something else:
//
//   \s \w \d     are Unicode properties (PCRE2's \s also matches U+180E, its
//                \w lacks marks and connectors)
//   \h \v        are a hexadecimal digit and the vertical tab
//   \p{Han}      is the script property, not script extensions
//   (?m)         lets the dot match a newline; ^ and $ always match at lines
//   a(?i)b|c     applies to "b|c" as a group
//   x{1,3}+      is a repeated group, not a possessive quantifier; x{,3} is
//                x{0,3}
//   [a[b]]       is the union of two sets
//   [a&&[^b]]    is a character of the first set that is in the second, too;
//                of general categories the same as one set, which is much
//                faster: what is in none of the others, nor in b
//   [a[^b]] and  are set operations that PCRE2 does not have: refused
//   other &&
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace baton::router {

// The PCRE2 pattern (for PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE and LF
// newlines). Unimplemented, naming the construct, for what is refused;
// InvalidArgument for unbalanced patterns. `pattern` must be valid UTF-8. Any
// thread.
absl::StatusOr<std::string> TranslateOniguruma(absl::string_view pattern);

}  // namespace baton::router
