#include "engine/cpu/kv_arena.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace baton::engine::cpu {

absl::StatusOr<KvArena> KvArena::Allocate(int64_t bytes) {
  void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    return absl::ResourceExhaustedError(
        absl::StrCat("kv_memory_bytes: the system has no ", bytes,
                     " bytes for KV memory: ", strerror(errno)));
  }
  return KvArena(absl::Span<std::byte>(static_cast<std::byte*>(memory), bytes));
}

KvArena::~KvArena() {
  if (!memory_.empty()) munmap(memory_.data(), memory_.size());
}

}  // namespace baton::engine::cpu
