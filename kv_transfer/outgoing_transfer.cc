#include "kv_transfer/outgoing_transfer.h"

#include <algorithm>
#include <utility>

#include "common/log.h"
#include "kv_transfer/checksum.h"
#include "kv_transfer/wire_encoding.h"

namespace baton::kv_transfer {

OutgoingTransfer::OutgoingTransfer(const KvGeometry& kv,
                                   std::shared_ptr<const PageMap> map,
                                   WireEncoding encoding, uint32_t generation,
                                   Content content)
    : map_(std::move(map)),
      encoding_(encoding),
      generation_(generation),
      content_(std::move(content)),
      num_pages_(map_->PagesFor(content_.num_tokens)),
      passed_on_(kv.num_layers) {
  CHECK_GE(content_.first_token, 0);
  CHECK_EQ(content_.first_token % map_->wire_block_size(), 0);
  for (BlockId block : content_.blocks) {
    CHECK_GE(block, 0);
    CHECK_LT(block, kv.num_blocks);
  }
}

bool OutgoingTransfer::PassOn(int32_t layer, int32_t tokens_ready) {
  CHECK_GE(layer, 0);
  CHECK_LT(layer, static_cast<int32_t>(passed_on_.size()));
  const uint32_t ready = map_->PagesReady(tokens_ready - content_.first_token,
                                          content_.num_tokens);
  const uint32_t first = passed_on_[layer];
  if (ready <= first) return false;
  CHECK(!record_.has_value()) << "pages passed on after the commit";
  pending_.push_back({static_cast<uint32_t>(layer), first, ready - first});
  passed_on_[layer] = ready;
  return true;
}

void OutgoingTransfer::Commit(const CommitRecord& record) {
  CHECK(!record_.has_value()) << "committed twice";
  for (uint32_t passed_on : passed_on_) {
    CHECK_EQ(passed_on, num_pages_)
        << "committed before all pages were passed on";
  }
  record_ = record;
}

std::optional<PageRun> OutgoingTransfer::NextBatch(uint32_t max_pages) const {
  CHECK(!ended_);
  if (pending_.empty()) return std::nullopt;
  PageRun batch = pending_.front();
  batch.num_pages = std::min(batch.num_pages, max_pages);
  return batch;
}

std::optional<PageRun> OutgoingTransfer::TakeBatch(uint32_t max_pages) {
  const std::optional<PageRun> batch = NextBatch(max_pages);
  if (!batch.has_value()) return std::nullopt;
  PageRun& run = pending_.front();
  run.first_page += batch->num_pages;
  run.num_pages -= batch->num_pages;
  if (run.num_pages == 0) pending_.pop_front();
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
          .num_pages = num_pages_,
          .encoding = encoding_,
          .total_bytes = static_cast<uint64_t>(total_bytes()),
          .checksum = checksum_ + RecordChecksum(*record_),
          .record = *record_};
}

int64_t OutgoingTransfer::total_bytes() const {
  return static_cast<int64_t>(passed_on_.size()) * num_pages_ *
         EncodedPageBytes(*map_, encoding_);
}

}  // namespace baton::kv_transfer
