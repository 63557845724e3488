// Logging and CHECK for all of Baton: glog, set up once per process.
//
// LOG(INFO|WARNING|ERROR) may be used from any thread. CHECK is for facts that
// only a bug of ours can break; what the world can break is an absl::Status.
// Never log prompt text, keys or certificates.
#pragma once

#include <string>

#include <glog/logging.h>

namespace baton {

// Sends all logging to standard error and names the process in it. Call once,
// first thing in main.
void InitLogging(const std::string& program_name);

}  // namespace baton
