#include "common/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/log.h"

namespace baton {

absl::StatusOr<std::unique_ptr<const MappedFile>> MappedFile::Open(
    const std::string& path) {
  // O_NONBLOCK: a pipe in place of the file must not hang us.
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat(path, ": cannot open"));
  }
  const auto close_fd = absl::MakeCleanup([fd] { close(fd); });
  struct stat stat = {};
  if (fstat(fd, &stat) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat(path, ": cannot stat"));
  }
  if (!S_ISREG(stat.st_mode)) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": not a regular file"));
  }
  if (stat.st_size == 0) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": is empty"));
  }
  const auto size = static_cast<size_t>(stat.st_size);
  void* const mapping = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd, 0);
  if (mapping == MAP_FAILED) {
    return absl::ErrnoToStatus(errno, absl::StrCat(path, ": cannot map"));
  }
  return std::unique_ptr<const MappedFile>(new MappedFile(path, mapping, size));
}

MappedFile::MappedFile(std::string path, void* mapping, size_t size)
    : path_(std::move(path)), mapping_(mapping), size_(size) {}

void MappedFile::ReadAhead() const {
  // Hints: it does not matter whether the kernel takes them.
  madvise(mapping_, size_, MADV_HUGEPAGE);
  madvise(mapping_, size_, MADV_WILLNEED);
}

MappedFile::~MappedFile() { PCHECK(munmap(mapping_, size_) == 0) << path_; }

}  // namespace baton
