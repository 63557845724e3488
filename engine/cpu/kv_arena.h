// The memory of a worker's KV cache: one anonymous mapping, page aligned, zero
// and taken from the system page by page as it is first written.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace baton::engine::cpu {

class KvArena final {
 public:
  // ResourceExhausted when the system refuses.
  static absl::StatusOr<KvArena> Allocate(int64_t bytes);

  KvArena(KvArena&& other) noexcept
      : memory_(std::exchange(other.memory_, {})) {}
  KvArena& operator=(KvArena&& other) noexcept {
    std::swap(memory_, other.memory_);
    return *this;
  }
  ~KvArena();

  absl::Span<std::byte> memory() const { return memory_; }

 private:
  explicit KvArena(absl::Span<std::byte> memory) : memory_(memory) {}

  absl::Span<std::byte> memory_;
};

}  // namespace baton::engine::cpu
