// A large piece of memory, for KV or for weights: page aligned, zero, in large
// pages where the kernel gives them (a small page ends what the CPU fetches
// ahead). Anonymous memory of this process, taken from the system page by page
// as it is first written; or memory that others may read by a descriptor, taken
// at once, unless it is more than what is free (common/shared_memory.h).
//
// One owner, any thread; all threads may use the memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/shared_memory.h"

namespace baton::engine::cpu {

class MemoryArena final {
 public:
  MemoryArena() = default;
  // ResourceExhausted, naming `purpose` ("KV memory"), when the system refuses.
  static absl::StatusOr<MemoryArena> Allocate(int64_t bytes,
                                              absl::string_view purpose);

  static absl::StatusOr<MemoryArena> AllocateShared(int64_t bytes,
                                                    absl::string_view purpose);

  MemoryArena(MemoryArena&& other) noexcept
      : shared_(std::move(other.shared_)),
        mapping_(std::exchange(other.mapping_, {})),
        memory_(std::exchange(other.memory_, {})) {}
  MemoryArena& operator=(MemoryArena&& other) noexcept {
    std::swap(shared_, other.shared_);
    std::swap(mapping_, other.mapping_);
    std::swap(memory_, other.memory_);
    return *this;
  }
  ~MemoryArena();

  absl::Span<std::byte> memory() const { return memory_; }
  // Of AllocateShared; else -1.
  int descriptor() const { return shared_.descriptor(); }

 private:
  // Of AllocateShared; memory_ is all of it.
  SharedMemory shared_;
  // Of Allocate: what was mapped; memory_ is the part from its first large page
  // on.
  absl::Span<std::byte> mapping_;
  absl::Span<std::byte> memory_;
};

// Hands out pieces of memory one after another, each aligned to cache lines.
class ArenaCarver final {
 public:
  explicit ArenaCarver(absl::Span<std::byte> memory) : memory_(memory) {}

  // What a piece of so many bytes takes.
  static int64_t Rounded(int64_t bytes) { return (bytes + 63) / 64 * 64; }

  absl::Span<std::byte> Take(int64_t bytes) {
    const absl::Span<std::byte> piece = memory_.subspan(used_, bytes);
    used_ += Rounded(bytes);
    return piece;
  }

 private:
  const absl::Span<std::byte> memory_;
  int64_t used_ = 0;
};

}  // namespace baton::engine::cpu
