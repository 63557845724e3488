// Memory that other processes may read when they are given its descriptor, and
// what such a process maps.
//
// The file behind it (memfd) has no name and lives as long as somebody holds or
// maps it. It is sealed: nobody can shorten it, so that a reader never runs
// past its end (which would end the reader's process), and nobody but its maker
// can write it, although they hold its descriptor.
//
// Threads: constant after construction; the bytes are whoever's they are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/scoped_fd.h"

namespace baton {

// The maker's side: zeros at first, taken from the system page by page as they
// are first touched, or before that by TakeLargePages.
class SharedMemory final {
 public:
  SharedMemory() = default;
  // Begins at a multiple of 2 MiB. ResourceExhausted or Unimplemented, naming
  // `purpose` ("KV memory"), when the system gives none.
  // REQUIRES: bytes > 0.
  static absl::StatusOr<SharedMemory> Create(int64_t bytes,
                                             absl::string_view purpose);

  SharedMemory(SharedMemory&& other) noexcept
      : file_(std::move(other.file_)),
        mapping_(std::exchange(other.mapping_, {})),
        memory_(std::exchange(other.memory_, {})) {}
  SharedMemory& operator=(SharedMemory&& other) noexcept {
    std::swap(file_, other.file_);
    std::swap(mapping_, other.mapping_);
    std::swap(memory_, other.memory_);
    return *this;
  }
  ~SharedMemory();

  // Takes it from the system now, from its first byte on, in large pages, which
  // those that map it have, too. Most systems give shared memory in small pages
  // otherwise, whatever is hinted. Returns how many bytes that is: none before
  // Linux 6.1, not all where there are no more large pages, or when it took
  // `most` (about 0.3 s a GB). What is written there meanwhile stays. One
  // thread.
  int64_t TakeLargePages(absl::Duration most);

  absl::Span<std::byte> memory() const { return memory_; }
  // memory() is this file from its first byte on. Lives as long as this.
  int descriptor() const { return file_.get(); }

 private:
  ScopedFd file_;
  // What was mapped or set aside; memory_ is a part of it.
  absl::Span<std::byte> mapping_;
  absl::Span<std::byte> memory_;
};

// The reader's side. Stays readable when the maker is gone.
class SharedMemoryView final {
 public:
  // Maps the first `bytes` of `file`, which may be closed afterwards and may
  // come from anybody: InvalidArgument unless it is memory that cannot be
  // shortened and holds that much; others as mmap(2).
  static absl::StatusOr<SharedMemoryView> Open(int file, uint64_t bytes);

  SharedMemoryView(SharedMemoryView&& other) noexcept
      : mapping_(std::exchange(other.mapping_, {})),
        memory_(std::exchange(other.memory_, {})) {}
  SharedMemoryView& operator=(SharedMemoryView&& other) noexcept {
    std::swap(mapping_, other.mapping_);
    std::swap(memory_, other.memory_);
    return *this;
  }
  ~SharedMemoryView();

  absl::Span<const std::byte> memory() const { return memory_; }

 private:
  SharedMemoryView() = default;
  // As in SharedMemory.
  absl::Span<std::byte> mapping_;
  absl::Span<std::byte> memory_;
};

}  // namespace baton
