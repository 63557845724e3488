// How much memory this process may still take: what the machine has left, and
// what the control groups allow.
//
// Linux: from /proc and the control groups (versions 1 and 2). What cannot be
// read is left out. Bytes. Any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace baton::process {

struct MemoryState {
  // Of the machine; 0 when not known.
  int64_t total = 0;
  // What the kernel could give out, files that it could drop included.
  int64_t available = 0;
  // Of the control group that leaves least.
  std::optional<int64_t> limit;
  // Taken of the limit, without files that the kernel could drop.
  int64_t limit_used = 0;

  // What this process could still take.
  int64_t Free() const;
};

// `root` is put before every path; empty but for tests.
MemoryState ReadMemory(const std::string& root = "");

// The folders whose limits hold for this process: its own group's and those
// above it. `controller` is "memory", "cpu", ... of version 1, empty for
// version 2.
std::vector<std::string> ControlGroupFolders(const std::string& root,
                                             absl::string_view controller);

}  // namespace baton::process
