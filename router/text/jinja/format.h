// Python's two ways to fill a text with values: `'%s' % value` and
// `'{}'.format(value)`.
//
// The thread of the Run. Widths and precisions are bounded.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "router/text/jinja/run.h"
#include "router/text/jinja/value.h"

namespace baton::router::jinja {

// `format % values`, where values is a tuple, a dict or one value.
// REQUIRES: format is a string.
absl::StatusOr<Value> FormatPercent(Run& run, const Value& format,
                                    const Value& values);

// `format.format(args)`. REQUIRES: format is a string.
absl::StatusOr<Value> FormatBraces(Run& run, const Value& format,
                                   const CallArgs& args);

// How one value is written, in either way.
struct FormatSpec {
  std::string fill = " ";  // one character
  char align = 0;          // '<', '>', '^' or '='; 0: the kind's own
  char sign = '-';         // '+', ' ' or '-'
  bool alternate = false;  // '#'
  int width = 0;           // in code points
  char grouping = 0;       // ',' or '_'
  int precision = -1;      // none
  char type = 0;           // none
};

// A number's digits, sign and all, padded. REQUIRES: value is a number and the
// type one of "bcdeEfFgGnoxX%", or none.
absl::StatusOr<std::string> FormatNumber(const Value& value,
                                         const FormatSpec& spec);

// `text`, of which `sign_size` bytes are a sign or "0x", padded to the width.
std::string Padded(absl::string_view text, size_t sign_size, char own_align,
                   const FormatSpec& spec);

// Reads digits from format[*at] on. Fails for numbers that are too large.
absl::StatusOr<int> ReadNumber(absl::string_view format, size_t* at);

}  // namespace baton::router::jinja
