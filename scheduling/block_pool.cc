#include "scheduling/block_pool.h"

#include <utility>

#include "common/log.h"

namespace baton::scheduling {

PooledBlocks::PooledBlocks(PooledBlocks&& other) noexcept
    : pool_(std::exchange(other.pool_, nullptr)), ids_(std::move(other.ids_)) {
  other.ids_.clear();
}

PooledBlocks& PooledBlocks::operator=(PooledBlocks&& other) noexcept {
  if (this != &other) {
    Release();
    pool_ = std::exchange(other.pool_, nullptr);
    ids_ = std::move(other.ids_);
    other.ids_.clear();
  }
  return *this;
}

PooledBlocks PooledBlocks::Share(int32_t count) const {
  CHECK_GE(count, 0);
  CHECK_LE(count, size());
  std::vector<BlockId> ids(ids_.begin(), ids_.begin() + count);
  for (BlockId block : ids) pool_->AddReference(block);
  return PooledBlocks(pool_, std::move(ids));
}

void PooledBlocks::Release() {
  // Backwards, so that the next allocation finds them in the same order.
  for (auto it = ids_.rbegin(); it != ids_.rend(); ++it) {
    pool_->DropReference(*it);
  }
  ids_.clear();
  pool_ = nullptr;
}

BlockPool::BlockPool(int32_t num_blocks) : references_(num_blocks, 0) {
  CHECK_GT(num_blocks, 0);
  free_.reserve(num_blocks);
  for (BlockId block = num_blocks - 1; block >= 0; --block) {
    free_.push_back(block);
  }
}

BlockPool::~BlockPool() {
  CHECK_EQ(num_in_use(), 0) << "blocks are still held as their pool dies";
}

std::optional<PooledBlocks> BlockPool::Allocate(int32_t count) {
  CHECK_GE(count, 0);
  if (count > num_free()) return std::nullopt;
  std::vector<BlockId> ids;
  ids.reserve(count);
  for (int32_t i = 0; i < count; ++i) {
    const BlockId block = free_.back();
    free_.pop_back();
    CHECK_EQ(references_[block], 0);
    references_[block] = 1;
    ids.push_back(block);
  }
  return PooledBlocks(this, std::move(ids));
}

void BlockPool::AddReference(BlockId block) {
  CHECK_GT(references_[block], 0);
  ++references_[block];
}

void BlockPool::DropReference(BlockId block) {
  CHECK_GT(references_[block], 0);
  if (--references_[block] == 0) free_.push_back(block);
}

void BlockPool::CheckInvariants() const {
  std::vector<bool> is_free(references_.size(), false);
  for (BlockId block : free_) {
    CHECK_GE(block, 0);
    CHECK_LT(block, size());
    CHECK(!is_free[block]) << "block " << block << " is free twice";
    is_free[block] = true;
  }
  for (BlockId block = 0; block < size(); ++block) {
    CHECK_GE(references_[block], 0);
    CHECK_EQ(is_free[block], references_[block] == 0) << "block " << block;
  }
}

}  // namespace baton::scheduling
