// Writes JSON by hand where it is hot: strings and numbers of streamed answers
// and of lines of the log.
// Pure; any thread.
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace baton {

// Appends `text` as a JSON string with its quotes. What is not valid UTF-8
// becomes U+FFFD; what controls a terminal is escaped (IsControlCharacter).
void AppendJsonString(absl::string_view text, std::string* out);

// The same without quotes.
void AppendJsonEscaped(absl::string_view text, std::string* out);

// Appends a number that reads back as the same float; -9999 for what JSON has
// no number for (as OpenAI's API does for a probability of 0).
void AppendJsonFloat(float value, std::string* out);

}  // namespace baton
