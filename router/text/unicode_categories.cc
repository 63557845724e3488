#include "router/text/unicode_categories.h"

#include <algorithm>
#include <cstddef>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace baton::router {
namespace {

constexpr absl::string_view kCategories[] = {
    "C",  "Cc", "Cf", "Cn", "Co", "Cs", "L",  "Ll", "Lm", "Lo",
    "Lt", "Lu", "M",  "Mc", "Me", "Mn", "N",  "Nd", "Nl", "No",
    "P",  "Pc", "Pd", "Pe", "Pf", "Pi", "Po", "Ps", "S",  "Sc",
    "Sk", "Sm", "So", "Z",  "Zl", "Zp", "Zs"};
constexpr absl::string_view kBooleanProperties[] = {
    "Alphabetic",  "Lowercase", "Uppercase",
    "White_Space", "Emoji",     "Ideographic"};

template <size_t N>
bool Contains(const absl::string_view (&names)[N], absl::string_view name) {
  for (const absl::string_view each : names) {
    if (each == name) return true;
  }
  return false;
}

}  // namespace

bool IsUnicodeProperty(absl::string_view name) {
  return Contains(kCategories, name) || Contains(kBooleanProperties, name);
}

std::optional<std::string> OtherCategories(absl::string_view set) {
  if (!absl::ConsumePrefix(&set, "[") || !absl::ConsumeSuffix(&set, "]")) {
    return std::nullopt;
  }
  std::vector<absl::string_view> there;
  while (absl::ConsumePrefix(&set, "\\p{")) {
    const size_t close = set.find('}');
    there.push_back(set.substr(0, close));
    if (!Contains(kCategories, there.back())) return std::nullopt;
    set.remove_prefix(close + 1);
  }
  if (!set.empty() || there.empty()) return std::nullopt;
  std::string others;
  for (const absl::string_view category : kCategories) {
    if (category.size() == 1) continue;
    const bool is_there =
        std::any_of(there.begin(), there.end(), [&](absl::string_view name) {
          return absl::StartsWith(category, name);
        });
    if (!is_there) absl::StrAppend(&others, "\\p{", category, "}");
  }
  return others;
}

}  // namespace baton::router
