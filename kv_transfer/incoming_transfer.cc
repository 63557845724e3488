#include "kv_transfer/incoming_transfer.h"

#include <utility>

#include "common/log.h"
#include "kv_transfer/checksum.h"
#include "kv_transfer/wire_encoding.h"

namespace baton::kv_transfer {

IncomingTransfer::IncomingTransfer(const KvGeometry& kv, int32_t block_size,
                                   uint32_t generation,
                                   std::vector<BlockId> blocks,
                                   int32_t num_tokens)
    : num_layers_(kv.num_layers),
      generation_(generation),
      blocks_(std::move(blocks)),
      num_tokens_(num_tokens) {
  CHECK_GE(num_tokens, 0);
  CHECK_LE(num_tokens, static_cast<int64_t>(blocks_.size()) * block_size);
  std::vector<bool> seen(kv.num_blocks);
  for (BlockId block : blocks_) {
    CHECK_GE(block, 0);
    CHECK_LT(block, kv.num_blocks);
    CHECK(!seen[block]) << "block " << block << " twice in one transfer";
    seen[block] = true;
  }
}

bool IncomingTransfer::Bind(const std::shared_ptr<const PageMap>& map,
                            WireEncoding encoding) {
  if (map_ != nullptr) return map_ == map && encoding_ == encoding;
  map_ = map;
  encoding_ = encoding;
  num_pages_ = map_->PagesFor(num_tokens_);
  claimed_.resize(size_t{num_pages_} * num_layers_);
  landed_of_layer_.resize(num_layers_);
  return true;
}

IncomingTransfer::Claim IncomingTransfer::TryClaim(const wire::Kv& message,
                                                   uint64_t payload_bytes) {
  CHECK(!ended_ && map_ != nullptr);
  const PageRun& run = message.pages;
  const uint64_t end = uint64_t{run.first_page} + run.num_pages;
  const auto page_bytes =
      static_cast<uint64_t>(EncodedPageBytes(*map_, encoding_));
  if (run.layer >= static_cast<uint32_t>(num_layers_) || run.num_pages == 0 ||
      end > num_pages_ || payload_bytes != run.num_pages * page_bytes) {
    return Claim::kOutOfRange;
  }
  for (uint32_t i = 0; i < run.num_pages; ++i) {
    if (claimed_[PageIndex(run.layer, run.first_page + i)]) {
      return Claim::kDuplicate;
    }
  }
  for (uint32_t i = 0; i < run.num_pages; ++i) {
    claimed_[PageIndex(run.layer, run.first_page + i)] = true;
  }
  nears_end_ = nears_end_ || end == num_pages_;
  ++num_landings_;
  return Claim::kClaimed;
}

bool IncomingTransfer::FinishClaim(const wire::Kv& message, uint64_t checksum) {
  DropClaim();
  num_landed_ += message.pages.num_pages;
  checksum_ += checksum;
  CHECK_LE(num_landed_, claimed_.size());
  uint32_t& of_layer = landed_of_layer_[message.pages.layer];
  of_layer += message.pages.num_pages;
  return of_layer == num_pages_;
}

void IncomingTransfer::DropClaim() {
  CHECK_GT(num_landings_, 0);
  --num_landings_;
}

TransferOutcome IncomingTransfer::TakeCommit(const wire::Commit& commit) {
  CHECK(map_ != nullptr);
  if (commit_.has_value()) return TransferOutcome::kOk;
  if (commit.num_layers != static_cast<uint32_t>(num_layers_) ||
      commit.num_pages != num_pages_ ||
      commit.total_bytes != static_cast<uint64_t>(total_bytes())) {
    return TransferOutcome::kCountsDiffer;
  }
  commit_ = commit;
  return TransferOutcome::kOk;
}

bool IncomingTransfer::Complete() const {
  return commit_.has_value() && num_landed_ == claimed_.size();
}

TransferOutcome IncomingTransfer::Verify() const {
  CHECK(Complete());
  const uint64_t sum = checksum_ + RecordChecksum(commit_->record);
  return commit_->checksum == sum ? TransferOutcome::kOk
                                  : TransferOutcome::kChecksumMismatch;
}

int64_t IncomingTransfer::total_bytes() const {
  return static_cast<int64_t>(claimed_.size()) *
         EncodedPageBytes(*map_, encoding_);
}

}  // namespace baton::kv_transfer
