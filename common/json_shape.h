// Bounds on a JSON text, counted in one pass before a parser allocates for it:
// recursive readers use up their stack on deep texts, trees take many times the
// bytes of a text of small values, and the objects of nlohmann::ordered_json
// look for each of their keys one by one.
//
// Pure; any thread; never allocates for what it reads.
#pragma once

#include <cstdint>
#include <limits>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace baton {

struct JsonBounds {
  // Arrays and objects inside one another.
  int max_depth = 64;
  // All values: scalars, arrays and objects (which may count twice).
  int64_t max_values = std::numeric_limits<int64_t>::max();
  // Members of one object.
  int64_t max_members = std::numeric_limits<int64_t>::max();
};

// InvalidArgument with what is wrong and without a subject: "is nested deeper
// than 64". What is no JSON at all may pass: the parser says so.
absl::Status CheckJsonBounds(absl::string_view text, const JsonBounds& bounds);

}  // namespace baton
