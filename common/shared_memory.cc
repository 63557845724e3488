#include "common/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "common/log.h"

// Newer than the headers of some systems; a kernel that does not know one says
// EINVAL.
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

namespace baton {
namespace {

constexpr int64_t kLargePage = int64_t{2} << 20;
// The file system of memfds without large pages of their own. Those of the
// other kind (hugetlbfs) end a reader when the system has no more of them.
constexpr int64_t kTmpfs = 0x01021994;

// Of what was set aside for `bytes` of memory, where these begin.
std::byte* FirstLargePage(absl::Span<std::byte> reserved) {
  const auto address = reinterpret_cast<uintptr_t>(reserved.data());
  const uintptr_t aligned =
      (address + kLargePage - 1) / kLargePage * kLargePage;
  return reserved.data() + (aligned - address);
}

// Sets addresses aside for `bytes` from FirstLargePage on. Empty, and errno,
// when there are none.
absl::Span<std::byte> Reserve(size_t bytes) {
  const size_t reserved = bytes + kLargePage;
  void* const place =
      reserved < bytes
          ? MAP_FAILED
          : mmap(nullptr, reserved, PROT_NONE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (place == MAP_FAILED) return {};
  return {static_cast<std::byte*>(place), reserved};
}

}  // namespace

absl::StatusOr<SharedMemory> SharedMemory::Create(int64_t bytes,
                                                  absl::string_view purpose) {
  CHECK_GT(bytes, 0);
  const auto error = [&](absl::string_view call) {
    const int number = errno;
    return absl::Status(
        number == ENOSYS ? absl::StatusCode::kUnimplemented
                         : absl::StatusCode::kResourceExhausted,
        absl::StrCat("the system has no ", bytes, " bytes to share for ",
                     purpose, ": ", call, ": ", strerror(number)));
  };
  SharedMemory out;
  out.file_ = ScopedFd(memfd_create("baton", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  const int file = out.file_.get();
  if (!out.file_.valid()) return error("memfd_create");
  if (ftruncate(file, bytes) != 0) return error("ftruncate");
  out.mapping_ = Reserve(static_cast<size_t>(bytes));
  if (out.mapping_.empty()) return error("mmap");
  std::byte* const begin = FirstLargePage(out.mapping_);
  if (mmap(begin, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file,
           0) == MAP_FAILED) {
    return error("mmap");
  }
  out.memory_ = {begin, static_cast<size_t>(bytes)};
  // After our own mapping, which stays writable. An older kernel may not know
  // it; then readers are trusted not to write.
  fcntl(file, F_ADD_SEALS, F_SEAL_FUTURE_WRITE);
  if (fcntl(file, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) !=
      0) {
    return error("sealing it");
  }
  madvise(begin, bytes, MADV_HUGEPAGE);
  return out;
}

int64_t SharedMemory::TakeLargePages(absl::Duration most) {
  constexpr size_t kSlice = 8 * kLargePage;
  const size_t small_page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const absl::Time end = Clock::Monotonic()->Now() + most;
  absl::Span<std::byte> left =
      memory_.first(memory_.size() / kLargePage * kLargePage);
  int64_t taken = 0;
  while (!left.empty() && Clock::Monotonic()->Now() < end) {
    const auto slice = left.first(std::min(left.size(), kSlice));
    // Where nothing is there, nothing is made of it.
    for (size_t at = 0; at < slice.size(); at += kLargePage) {
      if (madvise(slice.data() + at, small_page, MADV_POPULATE_WRITE) != 0) {
        return taken;
      }
    }
    int result = madvise(slice.data(), slice.size(), MADV_COLLAPSE);
    // Something held a page of it for a moment.
    if (result != 0 && errno == EAGAIN) {
      result = madvise(slice.data(), slice.size(), MADV_COLLAPSE);
    }
    if (result == 0) {
      taken += static_cast<int64_t>(slice.size());
    } else if (errno != EAGAIN) {
      return taken;
    }
    left.remove_prefix(slice.size());
  }
  return taken;
}

SharedMemory::~SharedMemory() {
  if (!mapping_.empty()) munmap(mapping_.data(), mapping_.size());
}

absl::StatusOr<SharedMemoryView> SharedMemoryView::Open(int file,
                                                        uint64_t bytes) {
  struct stat stat = {};
  struct statfs system = {};
  if (fstat(file, &stat) != 0 || fstatfs(file, &system) != 0) {
    return absl::ErrnoToStatus(errno, "shared memory");
  }
  const int seals = fcntl(file, F_GET_SEALS);
  if (!S_ISREG(stat.st_mode) || static_cast<int64_t>(system.f_type) != kTmpfs ||
      seals < 0 || (seals & F_SEAL_SHRINK) == 0) {
    return absl::InvalidArgumentError(
        "shared memory: not a memory file that is sealed against shrinking");
  }
  if (bytes == 0 || stat.st_size < 0 ||
      bytes > static_cast<uint64_t>(stat.st_size)) {
    return absl::InvalidArgumentError(
        absl::StrCat("shared memory: ", bytes,
                     " bytes said to be in a file of ", int64_t{stat.st_size}));
  }
  // Aligned, so that its large pages are large here, too.
  SharedMemoryView view;
  view.mapping_ = Reserve(bytes);
  void* const begin = FirstLargePage(view.mapping_);
  if (view.mapping_.empty() ||
      mmap(begin, bytes, PROT_READ, MAP_SHARED | MAP_NORESERVE | MAP_FIXED,
           file, 0) == MAP_FAILED) {
    return absl::ErrnoToStatus(
        errno, absl::StrCat("mapping ", bytes, " bytes of shared memory"));
  }
  // It is another process's to dump.
  madvise(begin, bytes, MADV_DONTDUMP);
  view.memory_ = {static_cast<std::byte*>(begin), static_cast<size_t>(bytes)};
  return view;
}

SharedMemoryView::~SharedMemoryView() {
  if (!mapping_.empty()) munmap(mapping_.data(), mapping_.size());
}

}  // namespace baton
