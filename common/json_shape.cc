#include "common/json_shape.h"

#include <vector>

#include "absl/strings/str_cat.h"

namespace baton {
namespace {

// An array or object that is still open.
struct Open {
  bool is_object;
  int64_t commas = 0;
};

// Past the string that begins at text[pos].
size_t SkipString(absl::string_view text, size_t pos) {
  for (++pos; pos < text.size() && text[pos] != '"'; ++pos) {
    if (text[pos] == '\\') ++pos;
  }
  return pos;
}

}  // namespace

absl::Status CheckJsonBounds(absl::string_view text, const JsonBounds& bounds) {
  std::vector<Open> open;
  open.reserve(static_cast<size_t>(bounds.max_depth));
  // Each value but the first of all follows a comma or begins a container.
  int64_t values = 1;
  for (size_t pos = 0; pos < text.size(); ++pos) {
    switch (text[pos]) {
      case '"':
        pos = SkipString(text, pos);
        continue;
      case '[':
      case '{':
        if (open.size() == static_cast<size_t>(bounds.max_depth)) {
          return absl::InvalidArgumentError(
              absl::StrCat("is nested deeper than ", bounds.max_depth));
        }
        open.push_back({.is_object = text[pos] == '{'});
        break;
      case ']':
      case '}':
        if (!open.empty()) open.pop_back();
        continue;
      case ',':
        if (!open.empty() && open.back().is_object &&
            ++open.back().commas >= bounds.max_members) {
          return absl::InvalidArgumentError(
              absl::StrCat("has an object with more than ", bounds.max_members,
                           " members"));
        }
        break;
      default:
        continue;
    }
    if (++values > bounds.max_values) {
      return absl::InvalidArgumentError(
          absl::StrCat("has more than ", bounds.max_values, " values"));
    }
  }
  return absl::OkStatus();
}

}  // namespace baton
