#include "common/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#include <cerrno>
#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/log.h"

namespace baton {
namespace {

constexpr int64_t kLargePage = int64_t{2} << 20;
// The file system of memfds without large pages of their own. Those of the
// other kind (hugetlbfs) end a reader when the system has no more of them.
constexpr int64_t kTmpfs = 0x01021994;

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
  const size_t reserved = static_cast<size_t>(bytes + kLargePage);
  void* const place = mmap(nullptr, reserved, PROT_NONE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (place == MAP_FAILED) return error("mmap");
  out.mapping_ = {static_cast<std::byte*>(place), reserved};
  const auto address = reinterpret_cast<uintptr_t>(place);
  const uintptr_t aligned =
      (address + kLargePage - 1) / kLargePage * kLargePage;
  std::byte* const begin = out.mapping_.data() + (aligned - address);
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
  // A hint: most systems give shared memory in small pages all the same.
  madvise(begin, bytes, MADV_HUGEPAGE);
  return out;
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
  void* const memory =
      mmap(nullptr, bytes, PROT_READ, MAP_SHARED | MAP_NORESERVE, file, 0);
  if (memory == MAP_FAILED) {
    return absl::ErrnoToStatus(
        errno, absl::StrCat("mapping ", bytes, " bytes of shared memory"));
  }
  // It is another process's to dump.
  madvise(memory, bytes, MADV_DONTDUMP);
  SharedMemoryView view;
  view.memory_ = {static_cast<std::byte*>(memory), static_cast<size_t>(bytes)};
  return view;
}

SharedMemoryView::~SharedMemoryView() {
  if (!memory_.empty()) munmap(memory_.data(), memory_.size());
}

}  // namespace baton
