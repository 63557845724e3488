// Characters that are newer than the Unicode tables of the PCRE2 at hand.
//
// A regular expression sees them as unassigned, while Hugging Face's (Oniguruma
// 6.9.10, Unicode 16) knows them as letters, marks, numbers and so on, which
// splits a text elsewhere. So matching runs on a copy of the text in which each
// of them is replaced by an old character of the same general category, of the
// same length in UTF-8, and of the script Han where it is of that. Pure
// functions; any thread.
#pragma once

#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace baton::router {

// The copy of `text` to match on, which differs from it in no offset; nothing
// if `text` has no such characters. REQUIRES: `text` is valid UTF-8.
std::optional<std::string> SubstituteNewCharacters(absl::string_view text);

}  // namespace baton::router
