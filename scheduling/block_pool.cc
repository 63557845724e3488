#include "scheduling/block_pool.h"

#include <algorithm>
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
  if (pool_ == nullptr) return PooledBlocks();
  return pool_->Hold({ids_.begin(), ids_.begin() + count});
}

void PooledBlocks::Append(PooledBlocks tail) {
  if (tail.pool_ == nullptr) return;
  if (pool_ == nullptr) pool_ = tail.pool_;
  CHECK_EQ(pool_, tail.pool_);
  ids_.insert(ids_.end(), tail.ids_.begin(), tail.ids_.end());
  tail.ids_.clear();
}

void PooledBlocks::Release() {
  // Backwards, so that the next allocation finds them in the same order, and a
  // keeper gets the end of a sequence before its beginning.
  for (auto it = ids_.rbegin(); it != ids_.rend(); ++it) {
    pool_->DropReference(*it);
  }
  ids_.clear();
  pool_ = nullptr;
}

BlockPool::BlockPool(int32_t num_blocks)
    : references_(num_blocks, 0), kept_(num_blocks, false) {
  CHECK_GT(num_blocks, 0);
  free_.reserve(num_blocks);
  for (BlockId block = num_blocks - 1; block >= 0; --block) {
    free_.push_back(block);
  }
}

BlockPool::~BlockPool() {
  CHECK_EQ(num_free(), size()) << "blocks are still held as their pool dies";
}

bool BlockPool::MakeFree(int32_t count) {
  CHECK_GE(count, 0);
  if (count > num_available()) return false;
  while (count > num_free()) {
    const int32_t before = num_free();
    keeper_->EvictOne();
    CHECK_EQ(num_free(), before + 1);
  }
  return true;
}

std::optional<PooledBlocks> BlockPool::AllocateInRuns(int32_t count) {
  if (!MakeFree(count)) return std::nullopt;
  std::sort(free_.begin(), free_.end());
  struct Run {
    BlockId first = 0;
    int32_t length = 0;
  };
  std::vector<Run> runs;
  for (const BlockId block : free_) {
    if (runs.empty() || runs.back().first + runs.back().length != block) {
      runs.push_back({block, 0});
    }
    ++runs.back().length;
  }
  // Of those that are equally long the first is the last.
  std::sort(runs.begin(), runs.end(), [](const Run& a, const Run& b) {
    return a.length != b.length ? a.length < b.length : a.first > b.first;
  });
  std::vector<BlockId> ids;
  ids.reserve(count);
  while (count > 0) {
    auto run = std::partition_point(
        runs.begin(), runs.end(),
        [count](const Run& one) { return one.length < count; });
    if (run == runs.end()) --run;
    const int32_t taken = std::min(count, run->length);
    for (BlockId block = run->first; block < run->first + taken; ++block) {
      CHECK_EQ(references_[block], 0);
      references_[block] = 1;
      ids.push_back(block);
    }
    count -= taken;
    // Whole, unless it is the last one that is needed.
    runs.erase(run);
  }
  std::erase_if(free_,
                [this](BlockId block) { return references_[block] > 0; });
  // The lowest last, as in the beginning.
  std::reverse(free_.begin(), free_.end());
  return PooledBlocks(this, std::move(ids));
}

std::optional<PooledBlocks> BlockPool::Allocate(int32_t count) {
  if (!MakeFree(count)) return std::nullopt;
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

PooledBlocks BlockPool::Hold(std::vector<BlockId> blocks) {
  for (BlockId block : blocks) AddReference(block);
  return PooledBlocks(this, std::move(blocks));
}

void BlockPool::SetKeeper(BlockKeeper* keeper) {
  CHECK(std::find(kept_.begin(), kept_.end(), true) == kept_.end());
  CHECK(keeper == nullptr || keeper_ == nullptr);
  keeper_ = keeper;
}

void BlockPool::Keep(BlockId block) {
  CHECK(keeper_ != nullptr);
  CHECK_GT(references_[block], 0);
  CHECK(!kept_[block]) << "block " << block;
  kept_[block] = true;
  ++references_[block];
}

void BlockPool::Drop(BlockId block) {
  CHECK(kept_[block]) << "block " << block;
  kept_[block] = false;
  DropReference(block);
}

void BlockPool::AddReference(BlockId block) {
  CHECK_GT(references_[block], 0);
  if (++references_[block] == 2 && kept_[block]) keeper_->OnShared(block);
}

void BlockPool::DropReference(BlockId block) {
  CHECK_GT(references_[block], 0);
  if (--references_[block] == 0) {
    free_.push_back(block);
  } else if (references_[block] == 1 && kept_[block]) {
    keeper_->OnUnshared(block);
  }
}

void BlockPool::CheckInvariants() const {
  std::vector<bool> is_free(references_.size(), false);
  for (BlockId block : free_) {
    CHECK_GE(block, 0);
    CHECK_LT(block, size());
    CHECK(!is_free[block]) << "block " << block << " is free twice";
    is_free[block] = true;
  }
  int32_t num_kept_alone = 0;
  for (BlockId block = 0; block < size(); ++block) {
    CHECK_GE(references_[block], 0);
    CHECK_EQ(is_free[block], references_[block] == 0) << "block " << block;
    if (!kept_[block]) continue;
    CHECK_GE(references_[block], 1) << "block " << block;
    if (references_[block] == 1) ++num_kept_alone;
  }
  CHECK_GE(num_evictable(), 0);
  CHECK_LE(num_evictable(), num_kept_alone);
}

}  // namespace baton::scheduling
