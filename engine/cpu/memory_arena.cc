#include "engine/cpu/memory_arena.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/log.h"
#include "common/process/memory.h"
#include "common/status_macros.h"

namespace baton::engine::cpu {
namespace {

constexpr int64_t kLargePage = int64_t{2} << 20;

}  // namespace

absl::StatusOr<MemoryArena> MemoryArena::Allocate(int64_t bytes,
                                                  absl::string_view purpose) {
  const int64_t mapped = bytes + kLargePage;
  void* const memory = mmap(nullptr, mapped, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the system has no ", bytes, " bytes for ", purpose, ": ",
                     strerror(errno)));
  }
  MemoryArena arena;
  arena.mapping_ = {static_cast<std::byte*>(memory),
                    static_cast<size_t>(mapped)};
  const auto address = reinterpret_cast<uintptr_t>(memory);
  const uintptr_t aligned =
      (address + kLargePage - 1) / kLargePage * kLargePage;
  arena.memory_ = arena.mapping_.subspan(aligned - address, bytes);
  madvise(arena.memory_.data(), bytes, MADV_HUGEPAGE);
  return arena;
}

absl::StatusOr<MemoryArena> MemoryArena::AllocateShared(
    int64_t bytes, absl::string_view purpose) {
  BATON_ASSIGN_OR_RETURN(SharedMemory shared,
                         SharedMemory::Create(bytes, purpose));
  MemoryArena arena;
  // Of what is not there, taking all would only push out everything else.
  const int64_t free = process::ReadMemory().Free();
  if (bytes <= free / 10 * 9) {
    const int64_t taken = shared.TakeLargePages(absl::Seconds(10));
    LOG(INFO) << purpose << ": " << (taken >> 20) << " of " << (bytes >> 20)
              << " MiB in large pages";
  } else {
    LOG(WARNING) << purpose << ": " << (bytes >> 20) << " MiB are more than "
                 << "nine tenths of the " << (free >> 20)
                 << " MiB that are free; they are taken as they are used";
  }
  arena.memory_ = shared.memory();
  arena.shared_ = std::move(shared);
  return arena;
}

MemoryArena::~MemoryArena() {
  if (!mapping_.empty()) munmap(mapping_.data(), mapping_.size());
}

}  // namespace baton::engine::cpu
