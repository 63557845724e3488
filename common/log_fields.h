// Log lines with named values, for people and for programs:
//
//   LogEvent(google::GLOG_INFO, "request ended",
//            LogFields().Text("request", id).Number("output_tokens", 12));
//
// reads, with --log-format text and json,
//
//   I20260102 03:04:05.678901 17 flow.cc:1] request ended request=r
//   output_tokens=12
//   {"time":"2026-01-02T03:04:05.678901Z","level":"info",...,
//    "message":"request ended","request":"r","output_tokens":12}
//
// (the second one is one line, too). Values may be any bytes. Any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <glog/logging.h>

#include "absl/strings/string_view.h"

namespace baton {

class LogFields final {
 public:
  // Longer values are cut, and end in "...".
  static constexpr size_t kMaxBytes = 2048;

  // `name` is a word of lower-case letters and underscores, said once.
  // A text that is empty adds nothing.
  LogFields& Text(absl::string_view name, absl::string_view value);
  LogFields& Number(absl::string_view name, int64_t value);
  LogFields& Bool(absl::string_view name, bool value);
  // Milliseconds to the microsecond; a name ends in "_ms".
  LogFields& Millis(absl::string_view name, double seconds);

  // " name=value" for each.
  void AppendText(std::string* out) const;
  // ",\"name\":value" for each.
  void AppendJson(std::string* out) const;

 private:
  struct Field {
    std::string name;
    std::string value;
    bool is_text = false;
  };
  std::vector<Field> fields_;
};

// Whether lines of this severity are written: what is costly to put together
// may ask first.
inline bool LogsAt(google::LogSeverity severity) {
  return severity >= FLAGS_minloglevel;
}

// Logs one line. `message` is the same words for all lines of a kind.
void LogEvent(google::LogSeverity severity, absl::string_view message,
              const LogFields& fields, const char* file = __builtin_FILE(),
              int line = __builtin_LINE());

}  // namespace baton
