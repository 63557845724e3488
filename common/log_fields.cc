#include "common/log_fields.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/json_text.h"
#include "common/log_escape.h"
#include "common/log_line.h"

namespace baton {

LogFields& LogFields::Text(absl::string_view name, absl::string_view value) {
  if (value.empty()) return *this;
  std::string kept(value.substr(0, kMaxBytes));
  if (value.size() > kMaxBytes) kept += "...";
  fields_.push_back({std::string(name), std::move(kept), /*is_text=*/true});
  return *this;
}

LogFields& LogFields::Number(absl::string_view name, int64_t value) {
  fields_.push_back({std::string(name), absl::StrCat(value)});
  return *this;
}

LogFields& LogFields::Bool(absl::string_view name, bool value) {
  fields_.push_back({std::string(name), value ? "true" : "false"});
  return *this;
}

LogFields& LogFields::Millis(absl::string_view name, double seconds) {
  // Neither JSON nor a reader has a use for infinity or NaN.
  const double ms = seconds > -1e12 && seconds < 1e12 ? seconds * 1e3 : 0.0;
  fields_.push_back({std::string(name), absl::StrFormat("%.3f", ms)});
  return *this;
}

void LogFields::AppendText(std::string* out) const {
  for (const Field& field : fields_) {
    absl::StrAppend(out, out->empty() ? "" : " ", field.name, "=");
    if (field.is_text) {
      AppendLogValue(field.value, out);
    } else {
      out->append(field.value);
    }
  }
}

void LogFields::AppendJson(std::string* out) const {
  for (const Field& field : fields_) {
    absl::StrAppend(out, ",\"", field.name, "\":");
    if (field.is_text) {
      AppendJsonString(field.value, out);
    } else {
      out->append(field.value);
    }
  }
}

void LogEvent(google::LogSeverity severity, absl::string_view message,
              const LogFields& fields, const char* file, int line) {
  if (!LogsAt(severity)) return;
  std::string text(message);
  fields.AppendText(&text);
  // The sink runs on this thread, before LogMessage is gone.
  const LogEventScope scope({message, &fields});
  google::LogMessage(file, line, severity).stream() << text;
}

}  // namespace baton
