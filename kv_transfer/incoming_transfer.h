// One transfer on the receiving side: which pages may still land, which have,
// and whether all of it is there and right. Pure state, no lock, no clock: the
// receiver owns both. Pages are wire pages (kv_transfer/page_map.h): which
// there are is known once it is bound to its sender.
//
// Invariants:
//   1. A page is claimed at most once; landed pages are claimed.
//   2. num_landings() is the number of claims that have not ended.
//   3. Nothing is claimed after End().
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "common/ids.h"
#include "kv_transfer/handoff.h"
#include "kv_transfer/page_map.h"
#include "kv_transfer/wire.h"

namespace baton::kv_transfer {

class IncomingTransfer final {
 public:
  // `num_tokens` tokens are to come, from the first slot of blocks[0] on.
  // REQUIRES: blocks in range of `kv` and distinct, and that hold the tokens.
  IncomingTransfer(const KvGeometry& kv, int32_t block_size,
                   uint32_t generation, std::vector<BlockId> blocks,
                   int32_t num_tokens);

  // What the sender's messages mean. False when they meant something else
  // before.
  bool Bind(const std::shared_ptr<const PageMap>& map, WireEncoding encoding);

  enum class Claim {
    kClaimed,
    // Some page of it was claimed before.
    kDuplicate,
    // A layer, block or size that this transfer does not have.
    kOutOfRange,
  };
  // Claims the pages of `message` for a payload of `payload_bytes`, all or
  // none. REQUIRES: bound, not ended.
  Claim TryClaim(const wire::Kv& message, uint64_t payload_bytes);

  // Ends a claim whose pages all landed, with their part of the checksum.
  // Whether all pages of its layer have landed now.
  bool FinishClaim(const wire::Kv& message, uint64_t checksum);
  // Ends a claim that failed.
  void DropClaim();

  // Remembers the commit; the first one counts. kOk, or why it cannot be met.
  // REQUIRES: bound.
  TransferOutcome TakeCommit(const wire::Commit& commit);

  // Whether the last page of some layer was claimed: its sender computes the
  // last of the tokens, and the other layers follow.
  bool nears_end() const { return nears_end_; }
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
  // Null until bound.
  const std::shared_ptr<const PageMap>& map() const { return map_; }
  WireEncoding encoding() const { return encoding_; }
  // Receives posted and not completed.
  int32_t num_landings() const { return num_landings_; }
  // Over the wire. REQUIRES: bound.
  int64_t total_bytes() const;
  // REQUIRES: TakeCommit() said kOk.
  const CommitRecord& record() const { return commit_->record; }

 private:
  size_t PageIndex(uint32_t layer, uint32_t page) const {
    return size_t{layer} * num_pages_ + page;
  }

  const int32_t num_layers_;
  const uint32_t generation_;
  const std::vector<BlockId> blocks_;
  const int32_t num_tokens_;

  // Once bound.
  std::shared_ptr<const PageMap> map_;
  WireEncoding encoding_ = WireEncoding::kExact;
  uint32_t num_pages_ = 0;  // of a layer

  std::vector<bool> claimed_;  // by PageIndex
  bool nears_end_ = false;
  size_t num_landed_ = 0;  // pages
  std::vector<uint32_t> landed_of_layer_;
  int32_t num_landings_ = 0;
  uint64_t checksum_ = 0;
  std::optional<wire::Commit> commit_;
  bool ended_ = false;
};

}  // namespace baton::kv_transfer
