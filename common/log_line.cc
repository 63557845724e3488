#include "common/log_line.h"

#include "absl/strings/str_cat.h"
#include "common/json_text.h"
#include "common/log_escape.h"

namespace baton {
namespace {

thread_local LoggedEvent current_event;

const char* LevelName(google::LogSeverity severity) {
  switch (severity) {
    case google::GLOG_INFO:
      return "info";
    case google::GLOG_WARNING:
      return "warning";
    case google::GLOG_ERROR:
      return "error";
    default:
      return "fatal";
  }
}

void AppendMember(absl::string_view name, absl::string_view text,
                  std::string* out) {
  absl::StrAppend(out, ",\"", name, "\":");
  AppendJsonString(text, out);
}

}  // namespace

LogEventScope::LogEventScope(const LoggedEvent& event) {
  current_event = event;
}

LogEventScope::~LogEventScope() { current_event = {}; }

const LoggedEvent& LogEventScope::Current() { return current_event; }

std::string FormatJsonLine(const LogOptions& process, const LogLine& line) {
  std::string out = absl::StrCat(
      "{\"time\":\"",
      absl::FormatTime("%Y-%m-%dT%H:%M:%E6SZ", line.time, absl::UTCTimeZone()),
      "\",\"level\":\"", LevelName(line.severity), "\"");
  AppendMember("process", process.program, &out);
  if (!process.name.empty()) AppendMember("name", process.name, &out);
  absl::StrAppend(&out, ",\"thread\":", line.thread);
  AppendMember("source", absl::StrCat(line.file, ":", line.line), &out);
  AppendMember("message", line.message, &out);
  if (line.fields != nullptr) line.fields->AppendJson(&out);
  out.push_back('}');
  return out;
}

}  // namespace baton
