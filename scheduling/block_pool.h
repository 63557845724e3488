// All KV blocks of one worker, and who holds how many references to each.
//
// Used by the worker's loop thread only. Never touches KV memory itself.
//
// Invariants (CheckInvariants):
//   1. A block is in the free list exactly when its reference count is 0, and
//      is there once.
//   2. free + in use == size.
//   3. Counts are never negative.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "common/ids.h"

namespace baton::scheduling {

class BlockPool;

// Blocks that their holder gives back by destroying this. Movable; sharing a
// block is explicit. Must not outlive the pool.
class PooledBlocks final {
 public:
  PooledBlocks() = default;
  PooledBlocks(PooledBlocks&& other) noexcept;
  PooledBlocks& operator=(PooledBlocks&& other) noexcept;
  ~PooledBlocks() { Release(); }

  // In logical order: the block table of a sequence.
  absl::Span<const BlockId> ids() const { return ids_; }
  int32_t size() const { return static_cast<int32_t>(ids_.size()); }

  // Another holder of the first `count` blocks.
  // REQUIRES: 0 <= count <= size().
  PooledBlocks Share(int32_t count) const;

  // Gives everything back now.
  void Release();

 private:
  friend class BlockPool;
  PooledBlocks(BlockPool* pool, std::vector<BlockId> ids)
      : pool_(pool), ids_(std::move(ids)) {}

  BlockPool* pool_ = nullptr;
  std::vector<BlockId> ids_;
};

class BlockPool final {
 public:
  explicit BlockPool(int32_t num_blocks);
  ~BlockPool();
  BlockPool(const BlockPool&) = delete;
  BlockPool& operator=(const BlockPool&) = delete;

  int32_t size() const { return static_cast<int32_t>(references_.size()); }
  int32_t num_free() const { return static_cast<int32_t>(free_.size()); }
  int32_t num_in_use() const { return size() - num_free(); }

  // `count` blocks with one reference each, or nothing at all.
  // REQUIRES: count >= 0.
  std::optional<PooledBlocks> Allocate(int32_t count);

  // CHECK-fails when an invariant is broken. Takes time in the pool's size.
  void CheckInvariants() const;

 private:
  friend class PooledBlocks;
  void AddReference(BlockId block);
  void DropReference(BlockId block);

  std::vector<int32_t> references_;  // by BlockId
  // A stack: the block freed last is the one most likely in a CPU cache.
  std::vector<BlockId> free_;
};

}  // namespace baton::scheduling
