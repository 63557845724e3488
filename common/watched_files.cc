#include "common/watched_files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/scoped_fd.h"

namespace baton {
namespace {

constexpr absl::Duration kLookInterval = absl::Seconds(1);

int64_t Nanoseconds(const timespec& time) {
  return int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

}  // namespace

WatchedFiles::WatchedFiles(std::vector<std::string> paths, const Clock* clock)
    : paths_(std::move(paths)),
      clock_(clock),
      next_look_(clock->Now() + kLookInterval),
      seen_(Look()) {}

bool WatchedFiles::Changed() {
  const absl::Time now = clock_->Now();
  if (now < next_look_) return false;
  next_look_ = now + kLookInterval;
  std::vector<Stamp> stamps = Look();
  if (stamps == seen_ && !look_again_) return false;
  seen_ = std::move(stamps);
  look_again_ = false;
  return true;
}

WatchedFiles::Stamp WatchedFiles::StampOf(const std::string& path) {
  struct stat status;
  Stamp stamp;
  if (stat(path.c_str(), &status) != 0) return stamp;
  stamp.device = status.st_dev;
  stamp.inode = status.st_ino;
  stamp.size = status.st_size;
  stamp.modified_ns = Nanoseconds(status.st_mtim);
  stamp.status_changed_ns = Nanoseconds(status.st_ctim);
  return stamp;
}

std::vector<WatchedFiles::Stamp> WatchedFiles::Look() const {
  std::vector<Stamp> stamps;
  stamps.reserve(paths_.size());
  for (const std::string& path : paths_) stamps.push_back(StampOf(path));
  return stamps;
}

bool MayReadLater(const absl::Status& error) {
  return !absl::IsInvalidArgument(error) && !absl::IsNotFound(error);
}

absl::StatusOr<std::string> ReadSmallFile(const std::string& path,
                                          int64_t max_bytes) {
  // Does not wait for the other end of a pipe.
  const ScopedFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (fd.get() < 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot open ", path));
  }
  std::string text;
  char buffer[16384];
  while (true) {
    const ssize_t count = read(fd.get(), buffer, sizeof(buffer));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) {
      return absl::ErrnoToStatus(errno, absl::StrCat("cannot read ", path));
    }
    if (count == 0) return text;
    text.append(buffer, static_cast<size_t>(count));
    if (static_cast<int64_t>(text.size()) > max_bytes) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, " is longer than ", max_bytes, " bytes"));
    }
  }
}

}  // namespace baton
