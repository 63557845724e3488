// One transfer on the receiving side: which pages may still land, which have,
// and whether all of it is there and right. Pure state, no lock, no clock: the
// receiver owns both.
//
// Invariants:
//   1. A page is claimed at most once; landed pages are claimed.
//   2. num_landings() is the number of claims that have not ended.
//   3. Nothing is claimed after End().
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "common/ids.h"
#include "kv_transfer/handoff.h"
#include "kv_transfer/wire.h"

namespace baton::kv_transfer {

class IncomingTransfer final {
 public:
  // REQUIRES: blocks in range of `kv` and distinct.
  IncomingTransfer(const KvGeometry& kv, uint32_t generation,
                   std::vector<BlockId> blocks);

  enum class Claim {
    kClaimed,
    // Some page of it was claimed before.
    kDuplicate,
    // A layer, block or size that this transfer does not have.
    kOutOfRange,
  };
  // Claims the pages of `message` for a payload of `payload_bytes`, all or
  // none. REQUIRES: not ended.
  Claim TryClaim(const wire::Kv& message, uint64_t payload_bytes);

  // Ends a claim whose pages all landed, with their part of the checksum.
  void FinishClaim(const wire::Kv& message, uint64_t checksum);
  // Ends a claim that failed.
  void DropClaim();

  // Remembers the commit; the first one counts. kOk, or why it cannot be met.
  TransferOutcome TakeCommit(const wire::Commit& commit);

  bool has_commit() const { return commit_.has_value(); }
  // Whether the commit and all pages are there.
  bool Complete() const;
  // kOk, or kChecksumMismatch. REQUIRES: Complete().
  TransferOutcome Verify() const;

  // Accepts nothing from now on. Idempotent.
  void End() { ended_ = true; }
  bool ended() const { return ended_; }

  uint32_t generation() const { return generation_; }
  const std::vector<BlockId>& blocks() const { return blocks_; }
  // Receives posted and not completed.
  int32_t num_landings() const { return num_landings_; }
  int64_t total_bytes() const;
  // REQUIRES: TakeCommit() said kOk.
  const CommitRecord& record() const { return commit_->record; }

 private:
  size_t PageIndex(uint32_t layer, uint32_t index) const {
    return size_t{layer} * blocks_.size() + index;
  }

  const int32_t num_layers_;
  const int64_t page_bytes_;
  const uint32_t generation_;
  const std::vector<BlockId> blocks_;

  std::vector<bool> claimed_;  // by PageIndex
  size_t num_landed_ = 0;      // pages
  int32_t num_landings_ = 0;
  uint64_t checksum_ = 0;
  std::optional<wire::Commit> commit_;
  bool ended_ = false;
};

}  // namespace baton::kv_transfer
