#include "cli/finite_range.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace baton::cli {

CLI::Validator FiniteRange(double least, double most) {
  const std::string range = absl::StrCat(least, " - ", most);
  return CLI::Validator(
      [least, most, range](const std::string& text) -> std::string {
        double value = 0;
        if (absl::SimpleAtod(text, &value) && value >= least && value <= most) {
          return "";
        }
        return absl::StrCat("\"", text, "\" is no number in [", range, "]");
      },
      absl::StrCat("FLOAT in [", range, "]"));
}

}  // namespace baton::cli
