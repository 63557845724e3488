// One line of a log as it is written: what log.cc's sink gets from glog, and
// the two formats. Of use to log.cc, log_fields.cc and tests only.
//
// Pure, but for LogEventScope, which belongs to its thread.
#pragma once

#include <string>

#include <glog/logging.h>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/log.h"
#include "common/log_fields.h"

namespace baton {

// The event that this thread logs at the moment.
struct LoggedEvent {
  absl::string_view message;
  const LogFields* fields = nullptr;  // null: none, a plain LOG line
};

class LogEventScope final {
 public:
  explicit LogEventScope(const LoggedEvent& event);
  ~LogEventScope();
  LogEventScope(const LogEventScope&) = delete;
  LogEventScope& operator=(const LogEventScope&) = delete;

  static const LoggedEvent& Current();
};

struct LogLine {
  google::LogSeverity severity = google::GLOG_INFO;
  absl::Time time;
  int thread = 0;
  absl::string_view file;
  int line = 0;
  absl::string_view message;
  const LogFields* fields = nullptr;
};

// A JSON object, without a newline.
std::string FormatJsonLine(const LogOptions& process, const LogLine& line);

}  // namespace baton
