#include "kv_transfer/incoming_transfer.h"

#include <utility>

#include "common/log.h"
#include "kv_transfer/checksum.h"

namespace baton::kv_transfer {

IncomingTransfer::IncomingTransfer(const KvGeometry& kv, uint32_t generation,
                                   std::vector<BlockId> blocks)
    : num_layers_(kv.num_layers),
      page_bytes_(kv.page_bytes),
      generation_(generation),
      blocks_(std::move(blocks)),
      claimed_(blocks_.size() * num_layers_) {
  std::vector<bool> seen(kv.num_blocks);
  for (BlockId block : blocks_) {
    CHECK_GE(block, 0);
    CHECK_LT(block, kv.num_blocks);
    CHECK(!seen[block]) << "block " << block << " twice in one transfer";
    seen[block] = true;
  }
}

IncomingTransfer::Claim IncomingTransfer::TryClaim(const wire::Kv& message,
                                                   uint64_t payload_bytes) {
  CHECK(!ended_);
  const uint64_t end = uint64_t{message.first_index} + message.num_blocks;
  if (message.layer >= static_cast<uint32_t>(num_layers_) ||
      message.num_blocks == 0 || end > blocks_.size() ||
      payload_bytes !=
          message.num_blocks * static_cast<uint64_t>(page_bytes_)) {
    return Claim::kOutOfRange;
  }
  for (uint32_t i = 0; i < message.num_blocks; ++i) {
    if (claimed_[PageIndex(message.layer, message.first_index + i)]) {
      return Claim::kDuplicate;
    }
  }
  for (uint32_t i = 0; i < message.num_blocks; ++i) {
    claimed_[PageIndex(message.layer, message.first_index + i)] = true;
  }
  ++num_landings_;
  return Claim::kClaimed;
}

void IncomingTransfer::FinishClaim(const wire::Kv& message, uint64_t checksum) {
  DropClaim();
  num_landed_ += message.num_blocks;
  checksum_ += checksum;
  CHECK_LE(num_landed_, claimed_.size());
}

void IncomingTransfer::DropClaim() {
  CHECK_GT(num_landings_, 0);
  --num_landings_;
}

TransferOutcome IncomingTransfer::TakeCommit(const wire::Commit& commit) {
  if (commit_.has_value()) return TransferOutcome::kOk;
  if (commit.num_layers != static_cast<uint32_t>(num_layers_) ||
      commit.num_blocks != blocks_.size() ||
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
  return static_cast<int64_t>(claimed_.size()) * page_bytes_;
}

}  // namespace baton::kv_transfer
