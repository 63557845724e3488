// The escapes in a string literal, as Python's "unicode-escape" codec has them.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace baton::router::jinja {

// The content of a literal between its quotes, in well-formed UTF-8. Pure; any
// thread. InvalidArgument for what stands for no character.
absl::StatusOr<std::string> UnescapeString(absl::string_view text);

}  // namespace baton::router::jinja
