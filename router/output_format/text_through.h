// Text up to a marker, as a regular expression.
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace baton::router {

// The pattern (regular_expression.h) of any text in which `marker` does not
// stand, and then `marker`. REQUIRES: it begins with <, which does not come
// again; the rest are letters, digits, _ / and >.
std::string TextThrough(absl::string_view marker);

}  // namespace baton::router
