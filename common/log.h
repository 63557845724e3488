// Logging and CHECK for all of Baton: glog, set up once per process.
//
// LOG(INFO|WARNING|ERROR) may be used from any thread; what programs are to
// read goes through LogEvent (common/log_fields.h). CHECK is for facts that
// only a bug of ours can break; what the world can break is an absl::Status.
// Never log prompt text, keys or certificates.
#pragma once

#include <map>
#include <string>

#include <glog/logging.h>

namespace baton {

enum class LogFormat {
  kText,  // glog's prefix, then the message, on one line
  kJson,  // one JSON object a line
};

// For a flag: "text" and "json".
const std::map<std::string, LogFormat>& LogFormats();

struct LogOptions {
  std::string program;
  // Which of the processes of that program it is; may be empty.
  std::string name;
  LogFormat format = LogFormat::kText;
};

// Sends all logging to standard error, each message as one line whatever bytes
// it has. Call once, first thing in main. Before that, and where it is not
// called, glog does what it does by default.
void InitLogging(const LogOptions& options);
void InitLogging(const std::string& program_name);

}  // namespace baton
