#include "kv_transfer/outgoing_transfer.h"

#include <algorithm>
#include <utility>

#include "common/log.h"
#include "kv_transfer/checksum.h"

namespace baton::kv_transfer {

OutgoingTransfer::OutgoingTransfer(const KvGeometry& kv, uint32_t generation,
                                   int32_t first_block,
                                   std::vector<BlockId> blocks)
    : page_bytes_(kv.page_bytes),
      generation_(generation),
      first_block_(first_block),
      blocks_(std::move(blocks)),
      passed_on_(kv.num_layers) {
  for (BlockId block : blocks_) {
    CHECK_GE(block, 0);
    CHECK_LT(block, kv.num_blocks);
  }
}

bool OutgoingTransfer::PassOn(int32_t layer, int32_t blocks_ready) {
  CHECK_GE(layer, 0);
  CHECK_LT(layer, static_cast<int32_t>(passed_on_.size()));
  const int32_t ready = std::min<int32_t>(blocks_ready - first_block_,
                                          static_cast<int32_t>(blocks_.size()));
  const int32_t first = passed_on_[layer];
  if (ready <= first) return false;
  CHECK(!record_.has_value()) << "pages passed on after the commit";
  pending_.push_back({static_cast<uint32_t>(layer),
                      static_cast<uint32_t>(first),
                      static_cast<uint32_t>(ready - first)});
  passed_on_[layer] = ready;
  return true;
}

void OutgoingTransfer::Commit(const CommitRecord& record) {
  CHECK(!record_.has_value()) << "committed twice";
  for (int32_t passed_on : passed_on_) {
    CHECK_EQ(passed_on, static_cast<int32_t>(blocks_.size()))
        << "committed before all pages were passed on";
  }
  record_ = record;
}

std::optional<OutgoingTransfer::Batch> OutgoingTransfer::TakeBatch(
    uint32_t max_pages) {
  CHECK(!ended_);
  if (pending_.empty()) return std::nullopt;
  Batch& run = pending_.front();
  Batch batch = run;
  batch.num_blocks = std::min(run.num_blocks, max_pages);
  run.first_index += batch.num_blocks;
  run.num_blocks -= batch.num_blocks;
  if (run.num_blocks == 0) pending_.pop_front();
  ++num_sends_;
  ++num_unhashed_;
  return batch;
}

void OutgoingTransfer::EndSend() {
  CHECK_GT(num_sends_, 0);
  --num_sends_;
}

bool OutgoingTransfer::CommitDue() const {
  return record_.has_value() && !commit_sent_ && !ended_ && pending_.empty() &&
         num_unhashed_ == 0;
}

wire::Commit OutgoingTransfer::TakeCommit(TransferId id) {
  CHECK(CommitDue());
  commit_sent_ = true;
  return {.transfer = id,
          .generation = generation_,
          .num_layers = static_cast<uint32_t>(passed_on_.size()),
          .num_blocks = static_cast<uint32_t>(blocks_.size()),
          .total_bytes = static_cast<uint64_t>(total_bytes()),
          .checksum = checksum_ + RecordChecksum(*record_),
          .record = *record_};
}

int64_t OutgoingTransfer::total_bytes() const {
  return static_cast<int64_t>(passed_on_.size() * blocks_.size()) * page_bytes_;
}

}  // namespace baton::kv_transfer
