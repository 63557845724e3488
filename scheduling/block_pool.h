// All KV blocks of one worker, and who holds how many references to each.
//
// A keeper (PrefixCache) may hold a reference of its own on blocks that others
// fill, and so keep them when nobody else needs them any more. Those that it
// would give up are as good as free: Allocate takes them when it has to.
//
// Used by the worker's loop thread only. Never touches KV memory itself.
//
// Invariants (CheckInvariants):
//   1. A block is in the free list exactly when its reference count is 0, and
//      is there once.
//   2. A kept block has at least one reference: its keeper's.
//   3. free + evictable + in use == size.
//   4. Counts are never negative.
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

  // Puts `tail` behind these. REQUIRES: of the same pool.
  void Append(PooledBlocks tail);

  // Gives everything back now, the last block first.
  void Release();

 private:
  friend class BlockPool;
  PooledBlocks(BlockPool* pool, std::vector<BlockId> ids)
      : pool_(pool), ids_(std::move(ids)) {}

  BlockPool* pool_ = nullptr;
  std::vector<BlockId> ids_;
};

// Keeps blocks beyond the life of those who filled them. The pool calls it.
class BlockKeeper {
 public:
  virtual ~BlockKeeper() = default;
  // A kept block is held by others too, from now on; by its keeper alone.
  // Neither may call the pool.
  virtual void OnShared(BlockId block) = 0;
  virtual void OnUnshared(BlockId block) = 0;
  // Kept blocks that EvictOne, called again and again, would give up.
  virtual int32_t num_evictable() const = 0;
  // Calls Drop for one of them. REQUIRES: num_evictable() >= 1.
  virtual void EvictOne() = 0;
};

class BlockPool final {
 public:
  explicit BlockPool(int32_t num_blocks);
  ~BlockPool();
  BlockPool(const BlockPool&) = delete;
  BlockPool& operator=(const BlockPool&) = delete;

  int32_t size() const { return static_cast<int32_t>(references_.size()); }
  // Nobody holds them.
  int32_t num_free() const { return static_cast<int32_t>(free_.size()); }
  // Only the keeper holds them, and it would give them up.
  int32_t num_evictable() const {
    return keeper_ == nullptr ? 0 : keeper_->num_evictable();
  }
  // What Allocate could give.
  int32_t num_available() const { return num_free() + num_evictable(); }
  int32_t num_in_use() const { return size() - num_available(); }

  // `count` blocks with one reference each, or nothing at all. Evicts kept
  // blocks when too few are free.
  // REQUIRES: count >= 0.
  std::optional<PooledBlocks> Allocate(int32_t count);

  // As Allocate, but of neighbours: the smallest run of free blocks that holds
  // them all, else the longest runs that there are. Takes time in the number of
  // free blocks. For memory that is moved run by run.
  std::optional<PooledBlocks> AllocateInRuns(int32_t count);

  // Another holder of blocks that somebody holds.
  PooledBlocks Hold(std::vector<BlockId> blocks);

  // The keeper outlives its time here; null ends it.
  // REQUIRES: no block is kept.
  void SetKeeper(BlockKeeper* keeper);
  // The keeper's own reference. REQUIRES: somebody holds the block, and it is
  // not kept (Keep); it is kept (Drop).
  void Keep(BlockId block);
  void Drop(BlockId block);

  // How many hold the block, its keeper included.
  int32_t references(BlockId block) const { return references_[block]; }
  bool is_kept(BlockId block) const { return kept_[block]; }

  // CHECK-fails when an invariant is broken. Takes time in the pool's size.
  void CheckInvariants() const;

 private:
  friend class PooledBlocks;
  // Whether so many are free, after evicting what that takes.
  bool MakeFree(int32_t count);
  void AddReference(BlockId block);
  void DropReference(BlockId block);

  std::vector<int32_t> references_;  // by BlockId
  std::vector<bool> kept_;           // by BlockId
  // A stack: the block freed last is the one most likely in a CPU cache.
  std::vector<BlockId> free_;
  BlockKeeper* keeper_ = nullptr;
};

}  // namespace baton::scheduling
