#include "worker/disk_space.h"

#include <fcntl.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace baton::worker {

absl::Status SetSpaceAside(int file, int64_t bytes) {
  const auto no_room = [bytes](int error) {
    return absl::ResourceExhaustedError(
        absl::StrCat("no room for ", bytes, " bytes: ", std::strerror(error)));
  };
  struct statvfs system;
  // A system in memory without a bound has no blocks.
  if (fstatvfs(file, &system) == 0 && system.f_blocks > 0 &&
      static_cast<uint64_t>(bytes) / system.f_frsize >= system.f_bavail) {
    return no_room(ENOSPC);
  }
  while (fallocate(file, 0, 0, bytes) != 0) {
    if (errno == EINTR) continue;
    if (errno == ENOSPC || errno == EDQUOT) return no_room(errno);
    if (errno != EOPNOTSUPP) return absl::ErrnoToStatus(errno, "fallocate");
    if (ftruncate(file, bytes) == 0) break;
    return absl::ErrnoToStatus(errno, "ftruncate");
  }
  return absl::OkStatus();
}

}  // namespace baton::worker
