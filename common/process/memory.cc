#include "common/process/memory.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/process/proc_file.h"

namespace baton::process {
namespace {

// What version 1 calls no limit is a number of this size.
constexpr int64_t kNoLimit = int64_t{1} << 60;

// The number after `name` and white space or a colon; 0 when there is none.
int64_t NumberAfter(const std::string& text, absl::string_view name) {
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    if (!absl::ConsumePrefix(&line, name)) continue;
    if (line.empty() || (line[0] != ':' && line[0] != ' ')) continue;
    int64_t value = 0;
    line = absl::StripAsciiWhitespace(line.substr(1));
    return absl::SimpleAtoi(line.substr(0, line.find(' ')), &value) ? value : 0;
  }
  return 0;
}

// The files of a group's folder: limit, use, and the field of memory.stat with
// what the kernel would drop first.
struct GroupFiles {
  const char* limit;
  const char* used;
  const char* droppable;
};

void ReadLimit(const std::string& folder, const GroupFiles& files,
               MemoryState* state) {
  const auto limit = ReadProcNumber(absl::StrCat(folder, "/", files.limit));
  if (!limit.has_value() || *limit >= kNoLimit) return;
  const int64_t used =
      ReadProcNumber(absl::StrCat(folder, "/", files.used)).value_or(0);
  const int64_t droppable =
      NumberAfter(ReadProcFile(folder + "/memory.stat"), files.droppable);
  const int64_t kept = std::max<int64_t>(0, used - droppable);
  if (state->limit && *state->limit - state->limit_used <= *limit - kept) {
    return;
  }
  state->limit = *limit;
  state->limit_used = kept;
}

}  // namespace

int64_t MemoryState::Free() const {
  if (!limit.has_value()) return available;
  return std::min(available, std::max<int64_t>(0, *limit - limit_used));
}

std::vector<std::string> ControlGroupFolders(const std::string& root,
                                             absl::string_view controller) {
  const std::string groups = ReadProcFile(root + "/proc/self/cgroup");
  std::vector<std::string> folders;
  for (absl::string_view line : absl::StrSplit(groups, '\n')) {
    // "4:memory:/path", or "0::/path".
    const std::vector<std::string> parts =
        absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (parts.size() != 3 || !absl::StartsWith(parts[2], "/")) continue;
    const std::vector<std::string> names = absl::StrSplit(parts[1], ',');
    if (std::count(names.begin(), names.end(), controller) == 0) continue;
    const std::string mount = absl::StrCat(
        root, "/sys/fs/cgroup", controller.empty() ? "" : "/", controller);
    std::string path = parts[2];
    while (path.size() > 1) {
      folders.push_back(mount + path);
      path.resize(path.rfind('/'));
    }
    folders.push_back(mount);
  }
  return folders;
}

MemoryState ReadMemory(const std::string& root) {
  MemoryState state;
  const std::string info = ReadProcFile(root + "/proc/meminfo");
  state.total = NumberAfter(info, "MemTotal") * 1024;
  state.available = NumberAfter(info, "MemAvailable") * 1024;
  for (const std::string& folder : ControlGroupFolders(root, "")) {
    ReadLimit(folder, {"memory.max", "memory.current", "inactive_file"},
              &state);
  }
  for (const std::string& folder : ControlGroupFolders(root, "memory")) {
    ReadLimit(folder,
              {"memory.limit_in_bytes", "memory.usage_in_bytes",
               "total_inactive_file"},
              &state);
  }
  return state;
}

}  // namespace baton::process
