// Unicode properties and normalization forms, from ICU.
//
// Pure functions; any thread. Text must be well-formed UTF-8.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace baton::router {

enum class NormalizationForm { kNfc, kNfd, kNfkc, kNfkd };

// `text` in the given form. Fails only where ICU has no data or no memory.
absl::StatusOr<std::string> NormalizeUnicode(NormalizationForm form,
                                             absl::string_view text);

// Each character's full lower case, without context (a Greek final sigma does
// not become a final one): what Rust's char::to_lowercase gives.
std::string LowercaseCharacters(absl::string_view text);

bool IsAscii(absl::string_view text);

// Property White_Space.
bool IsWhitespace(char32_t code_point);
// General categories Nd, Nl and No.
bool IsNumeric(char32_t code_point);
// ASCII punctuation (with its symbols) or a general category P*.
bool IsPunctuation(char32_t code_point);
// What `\w` matches in Rust's regex crate (Unicode TR18, annex C).
bool IsWordCharacter(char32_t code_point);

}  // namespace baton::router
