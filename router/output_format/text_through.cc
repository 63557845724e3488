#include "router/output_format/text_through.h"

#include "absl/strings/str_cat.h"
#include "common/log.h"

namespace baton::router {

// As the automaton that looks for the marker reads text: behind a < that may
// begin it, some beginnings of the rest lead to the next <, and some back to
// where there is none.
std::string TextThrough(absl::string_view marker) {
  CHECK(marker.size() > 1 && marker[0] == '<');
  const absl::string_view rest = marker.substr(1);
  std::string again;
  std::string back;
  for (size_t i = 0; i < rest.size(); ++i) {
    const absl::string_view begun = rest.substr(0, i);
    absl::StrAppend(&again, i > 0 ? "|" : "", begun, "<");
    absl::StrAppend(&back, i > 0 ? "|" : "", begun, "[^<", rest.substr(i, 1),
                    "]");
  }
  again = absl::StrCat("(?:", again, ")*");
  return absl::StrCat("(?:[^<]|<", again, "(?:", back, "))*<", again, rest);
}

}  // namespace baton::router
