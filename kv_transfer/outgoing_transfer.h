// One transfer on the sending side: which pages were passed on, which are on
// the wire, and when the commit is due. Pure state, no lock, no clock: the
// sender owns both.
//
// Invariants:
//   1. A page is passed on at most once and sent at most once, in this order.
//   2. num_sends() is the number of batches taken whose send has not ended.
//   3. The commit is due only when every page was sent and hashed.
//   4. No batch is taken after End().
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "common/ids.h"
#include "kv_transfer/handoff.h"
#include "kv_transfer/wire.h"

namespace baton::kv_transfer {

class OutgoingTransfer final {
 public:
  // `blocks`: the granted ones, in logical order; the first of them is logical
  // block `first_block` of the sequence. REQUIRES: blocks in range of `kv`.
  OutgoingTransfer(const KvGeometry& kv, uint32_t generation,
                   int32_t first_block, std::vector<BlockId> blocks);

  // As HandoffSender::SendLayer. Whether there is anything new.
  bool PassOn(int32_t layer, int32_t blocks_ready);

  // As HandoffSender::Commit.
  void Commit(const CommitRecord& record);

  // A run of blocks of one layer, indices within the granted blocks.
  struct Batch {
    uint32_t layer = 0;
    uint32_t first_index = 0;
    uint32_t num_blocks = 0;
  };
  // The next pages to send, at most `max_pages`; a send of them begins.
  std::optional<Batch> TakeBatch(uint32_t max_pages);
  // The batch taken last was hashed and handed to the transport.
  void AddChecksum(uint64_t checksum) {
    --num_unhashed_;
    checksum_ += checksum;
  }
  void EndSend();

  // Whether TakeCommit() may be called: once, when all pages are on their way.
  bool CommitDue() const;
  wire::Commit TakeCommit(TransferId id);
  bool commit_sent() const { return commit_sent_; }

  // Sends nothing from now on. Idempotent.
  void End() {
    ended_ = true;
    pending_.clear();
  }
  bool ended() const { return ended_; }

  uint32_t generation() const { return generation_; }
  absl::Span<const BlockId> blocks() const { return blocks_; }
  // Sends begun and not completed.
  int32_t num_sends() const { return num_sends_; }
  int64_t total_bytes() const;

 private:
  const int64_t page_bytes_;
  const uint32_t generation_;
  const int32_t first_block_;
  const std::vector<BlockId> blocks_;

  std::vector<int32_t> passed_on_;  // by layer: of blocks_, from the front
  std::deque<Batch> pending_;       // passed on and not yet taken
  int32_t num_sends_ = 0;
  int32_t num_unhashed_ = 0;
  uint64_t checksum_ = 0;
  std::optional<CommitRecord> record_;
  bool commit_sent_ = false;
  bool ended_ = false;
};

}  // namespace baton::kv_transfer
