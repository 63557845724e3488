// Names of Unicode's general categories and properties, for the translation of
// regular expressions (regex_translation.h). Pure; any thread.
#pragma once

#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace baton::router {

// Whether it is a general category or one of the boolean properties that
// patterns use. Any other name is taken for a script.
bool IsUnicodeProperty(absl::string_view name);

// The general categories that are not in a set of nothing but those, such as
// "[\p{Lu}\p{M}]", one after another as "\p{Lt}"; nothing where there is more
// in it.
std::optional<std::string> OtherCategories(absl::string_view set);

}  // namespace baton::router
