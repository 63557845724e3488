// The blocks of attempts that are over, until the transport has let go of them:
// a late write can then never land in another request's blocks.
//
// Used by the worker's loop thread only. Dies before the block pool.
#pragma once

#include <cstdint>
#include <map>
#include <utility>

#include "common/ids.h"
#include "common/log.h"
#include "scheduling/block_pool.h"

namespace baton::worker {

class Quarantine final {
 public:
  // REQUIRES: nothing is held for `transfer`.
  void Hold(TransferId transfer, scheduling::PooledBlocks blocks) {
    num_blocks_ += blocks.size();
    CHECK(held_.emplace(transfer, std::move(blocks)).second);
  }

  // Nothing touches the transfer's blocks any more. No-op when none are held.
  void Release(TransferId transfer) {
    const auto it = held_.find(transfer);
    if (it == held_.end()) return;
    num_blocks_ -= it->second.size();
    held_.erase(it);
  }

  bool Holds(TransferId transfer) const { return held_.contains(transfer); }
  int64_t num_blocks() const { return num_blocks_; }
  const std::map<TransferId, scheduling::PooledBlocks>& held() const {
    return held_;
  }

 private:
  std::map<TransferId, scheduling::PooledBlocks> held_;
  int64_t num_blocks_ = 0;
};

}  // namespace baton::worker
