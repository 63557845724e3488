// One transfer on the sending side: which pages were passed on, which are on
// the wire, and when the commit is due. Pure state, no lock, no clock: the
// sender owns both. Pages are wire pages (kv_transfer/page_map.h).
//
// Invariants:
//   1. A page is passed on at most once and sent at most once, in this order.
//   2. num_sends() is the number of batches taken whose send has not ended.
//   3. The commit is due only when every page was sent and hashed.
//   4. No batch is taken after End().
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "common/ids.h"
#include "kv_transfer/handoff.h"
#include "kv_transfer/page_map.h"
#include "kv_transfer/wire.h"

namespace baton::kv_transfer {

class OutgoingTransfer final {
 public:
  // What goes over: tokens [first_token, first_token + num_tokens) of a
  // sequence whose blocks here are `blocks`, from its first token on.
  struct Content {
    std::vector<BlockId> blocks;
    int32_t first_token = 0;
    int32_t num_tokens = 0;
  };

  // REQUIRES: blocks in range of `kv` that hold these tokens; first_token a
  // multiple of map->wire_block_size().
  OutgoingTransfer(const KvGeometry& kv, std::shared_ptr<const PageMap> map,
                   WireEncoding encoding, uint32_t generation, Content content);

  // The first `tokens_ready` tokens of the sequence have their KV of `layer`.
  // Whether there is anything new to send.
  bool PassOn(int32_t layer, int32_t tokens_ready);

  // As HandoffSender::Commit.
  void Commit(const CommitRecord& record);

  // As TakeBatch, and nothing begins.
  std::optional<PageRun> NextBatch(uint32_t max_pages) const;
  // The next pages to send, at most `max_pages`; a send of them begins.
  std::optional<PageRun> TakeBatch(uint32_t max_pages);
  // The sum of the batch taken last, which may be on its way already.
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
  WireEncoding encoding() const { return encoding_; }
  const std::shared_ptr<const PageMap>& map() const { return map_; }
  const Content& content() const { return content_; }
  // Sends begun and not completed.
  int32_t num_sends() const { return num_sends_; }
  // Over the wire.
  int64_t total_bytes() const;

 private:
  const std::shared_ptr<const PageMap> map_;
  const WireEncoding encoding_;
  const uint32_t generation_;
  const Content content_;
  const uint32_t num_pages_;  // of a layer

  std::vector<uint32_t> passed_on_;  // by layer: pages, from the front
  std::deque<PageRun> pending_;      // passed on and not yet taken
  int32_t num_sends_ = 0;
  int32_t num_unhashed_ = 0;
  uint64_t checksum_ = 0;
  std::optional<CommitRecord> record_;
  bool commit_sent_ = false;
  bool ended_ = false;
};

}  // namespace baton::kv_transfer
