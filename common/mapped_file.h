// A whole file mapped into memory for reading.
//
// Constant after Open, readable from any thread. Nobody may shorten the file
// while it is mapped: reading beyond its end then ends the process (SIGBUS).
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace baton {

class MappedFile final {
 public:
  // Errors name the path: NotFound and others of open(2); InvalidArgument for
  // an empty file or one that is no regular file.
  static absl::StatusOr<std::unique_ptr<const MappedFile>> Open(
      const std::string& path);

  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const std::string& path() const { return path_; }
  absl::Span<const std::byte> bytes() const {
    return absl::MakeConstSpan(static_cast<const std::byte*>(mapping_), size_);
  }

  // Asks the kernel to read the whole file, in large pages where it can, and
  // returns at once.
  void ReadAhead() const;

 private:
  MappedFile(std::string path, void* mapping, size_t size);

  const std::string path_;
  void* const mapping_;
  const size_t size_;
};

}  // namespace baton
