#include "common/output_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace baton {

absl::Status FileError(int error_number, absl::string_view what,
                       const std::string& path) {
  const std::string message = absl::StrCat(what, " ", path);
  if (error_number == ENOSPC || error_number == EDQUOT) {
    return absl::ResourceExhaustedError(
        absl::StrCat(message, ": ", std::strerror(error_number)));
  }
  return absl::ErrnoToStatus(error_number, message);
}

absl::StatusOr<OutputFile> OutputFile::Create(const std::string& path) {
  return Open(path, O_TRUNC);
}

absl::StatusOr<OutputFile> OutputFile::CreateNew(const std::string& path) {
  return Open(path, O_EXCL);
}

absl::StatusOr<OutputFile> OutputFile::Open(const std::string& path,
                                            int flags) {
  const int fd =
      open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | flags, 0644);
  if (fd < 0) return FileError(errno, "cannot create", path);
  return OutputFile(path, fd);
}

OutputFile::OutputFile(OutputFile&& other) noexcept
    : path_(std::move(other.path_)), fd_(std::exchange(other.fd_, -1)) {}

OutputFile::~OutputFile() {
  if (fd_ >= 0) close(fd_);
}

absl::Status OutputFile::Write(absl::Span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t n = write(fd_, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return FileError(errno, "cannot write", path_);
    bytes.remove_prefix(static_cast<size_t>(n));
  }
  return absl::OkStatus();
}

absl::Status OutputFile::Write(absl::string_view text) {
  return Write(absl::MakeConstSpan(
      reinterpret_cast<const std::byte*>(text.data()), text.size()));
}

absl::Status OutputFile::SyncAndDrop() {
  if (fsync(fd_) != 0) return FileError(errno, "cannot write", path_);
  // A hint: it does not matter whether the kernel takes it.
  posix_fadvise(fd_, 0, 0, POSIX_FADV_DONTNEED);
  return absl::OkStatus();
}

absl::Status OutputFile::Close() {
  if (close(std::exchange(fd_, -1)) != 0 && errno != EINTR) {
    return FileError(errno, "cannot write", path_);
  }
  return absl::OkStatus();
}

absl::Status WriteTextFile(const std::string& path, absl::string_view text) {
  BATON_ASSIGN_OR_RETURN(OutputFile file, OutputFile::Create(path));
  BATON_RETURN_IF_ERROR(file.Write(text));
  return file.Close();
}

}  // namespace baton
