// A file that is written once, from its beginning to its end, with errors that
// name it. Not thread-safe; owned by one object.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace baton {

// The error of a file-system call on `path`: ResourceExhausted when there was
// no space, else as absl::ErrnoToStatus.
absl::Status FileError(int error_number, absl::string_view what,
                       const std::string& path);

class OutputFile final {
 public:
  // Creates the file, or empties the one that is there.
  static absl::StatusOr<OutputFile> Create(const std::string& path);
  // AlreadyExists when one is there.
  static absl::StatusOr<OutputFile> CreateNew(const std::string& path);

  OutputFile(OutputFile&& other) noexcept;
  OutputFile& operator=(OutputFile&&) = delete;
  ~OutputFile();

  // Appends all of it.
  absl::Status Write(absl::Span<const std::byte> bytes);
  absl::Status Write(absl::string_view text);
  // Waits until it is on the disk, and drops it from memory: a file that is
  // written in pieces lies in the kernel's cache in small pages, and who maps
  // it next should read it in large ones.
  absl::Status SyncAndDrop();
  // Some file systems say only now that they had no space.
  absl::Status Close();

 private:
  static absl::StatusOr<OutputFile> Open(const std::string& path, int flags);

  OutputFile(std::string path, int fd) : path_(std::move(path)), fd_(fd) {}

  std::string path_;
  int fd_;
};

// All at once.
absl::Status WriteTextFile(const std::string& path, absl::string_view text);

}  // namespace baton
