#include "common/log.h"

#include <errno.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstddef>

#include "absl/time/time.h"
#include "common/log_escape.h"
#include "common/log_line.h"

namespace baton {
namespace {

// As much as the kernel takes; a log that nobody can write to is lost.
void WriteToStderr(const std::string& line) {
  size_t written = 0;
  while (written < line.size()) {
    const ssize_t n =
        write(STDERR_FILENO, line.data() + written, line.size() - written);
    if (n < 0 && errno != EINTR) return;
    if (n > 0) written += static_cast<size_t>(n);
  }
}

// Writes what glog hands on. glog calls it with its own lock held, so lines do
// not mix.
class StderrSink final : public google::LogSink {
 public:
  explicit StderrSink(const LogOptions& options) : options_(options) {}

  void send(google::LogSeverity severity, const char* /*full_filename*/,
            const char* base_filename, int line,
            const google::LogMessageTime& time, const char* message,
            size_t length) override {
    const absl::string_view text(message, length);
    WriteToStderr((options_.format == LogFormat::kJson
                       ? Json(severity, base_filename, line, time, text)
                       : Text(severity, base_filename, line, time, text)) +
                  "\n");
  }

 private:
  std::string Json(google::LogSeverity severity, const char* file, int line,
                   const google::LogMessageTime& time,
                   absl::string_view text) const {
    const LoggedEvent& event = LogEventScope::Current();
    return FormatJsonLine(
        options_, {.severity = severity,
                   .time = absl::FromTimeT(time.timestamp()) +
                           absl::Microseconds(time.usec()),
                   .thread = static_cast<int>(syscall(SYS_gettid)),
                   .file = file,
                   .line = line,
                   .message = event.fields != nullptr ? event.message : text,
                   .fields = event.fields});
  }

  static std::string Text(google::LogSeverity severity, const char* file,
                          int line, const google::LogMessageTime& time,
                          absl::string_view text) {
    std::string printable;
    AppendPrintable(text, &printable);
    return ToString(severity, file, line, time, printable.data(),
                    printable.size());
  }

  const LogOptions options_;
};

}  // namespace

const std::map<std::string, LogFormat>& LogFormats() {
  static const auto* formats = new std::map<std::string, LogFormat>{
      {"text", LogFormat::kText}, {"json", LogFormat::kJson}};
  return *formats;
}

void InitLogging(const LogOptions& options) {
  // glog keeps the pointers, so these live as long as the process.
  static const auto* const kept = new LogOptions(options);
  static auto* const sink = new StderrSink(*kept);
  // Nothing but the sink writes: no files, not glog's own lines on stderr.
  FLAGS_logtostderr = false;
  FLAGS_alsologtostderr = false;
  FLAGS_stderrthreshold = google::NUM_SEVERITIES;
  for (int severity = 0; severity < google::NUM_SEVERITIES; ++severity) {
    google::SetLogDestination(severity, "");
  }
  google::InitGoogleLogging(kept->program.c_str());
  google::AddLogSink(sink);
}

void InitLogging(const std::string& program_name) {
  InitLogging(LogOptions{.program = program_name});
}

}  // namespace baton
