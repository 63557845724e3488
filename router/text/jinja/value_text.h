// Values as text: Python's str() and repr(), and json.dumps as Hugging Face's
// `tojson` filter calls it.
//
// The thread of the Run, which pays for the text. A text that grows too long is
// an error.
#pragma once

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "router/text/jinja/run.h"
#include "router/text/jinja/value.h"

namespace baton::router::jinja {

// str(value).
absl::StatusOr<std::string> Str(Run& run, const Value& value);
// Appends str(value) to `out`, which must not grow too long.
absl::Status AppendStr(Run& run, const Value& value, std::string* out);
// The value if it is a string already, else str(value) as one.
absl::StatusOr<Value> StrValue(Run& run, const Value& value);

absl::StatusOr<std::string> Repr(Run& run, const Value& value);

struct JsonStyle {
  bool ensure_ascii = false;
  // What one level is indented by; nothing: all on one line.
  std::optional<std::string> indent;
  std::string item_separator = ", ";
  std::string key_separator = ": ";
  bool sort_keys = false;
};

// json.dumps(value). Fails for what JSON has no word for.
absl::StatusOr<std::string> ToJson(Run& run, const Value& value,
                                   const JsonStyle& style);

}  // namespace baton::router::jinja
