// Text of any origin in a line of a log: whatever bytes it has, the line stays
// one line, cannot pass for another one, and does nothing to a terminal.
//
// Pure; any thread.
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace baton {

// Appends `text` with escapes in place of what is not printable: "\n", "\r",
// "\t", "\xNN" for a byte that is no UTF-8, "\uNNNN" for other characters that
// control a terminal or the direction of writing. All else, quotes and
// backslashes as well, stays as it is.
void AppendPrintable(absl::string_view text, std::string* out);

// Appends `text` as the value of a "key=value" pair: as it is when it is a
// plain word, else in double quotes, with escapes as above and \" and \\.
void AppendLogValue(absl::string_view text, std::string* out);

}  // namespace baton
