#include "decode_worker/transfer_slots.h"

#include "common/log.h"

namespace baton::decode_worker {

TransferSlots::TransferSlots(uint64_t incarnation, uint32_t num_slots)
    : base_(incarnation & ~uint64_t{UINT32_MAX}),
      generations_(num_slots),
      taken_(num_slots) {
  for (uint32_t slot = 0; slot < num_slots; ++slot) free_.push_back(slot);
}

std::optional<TransferSlots::Name> TransferSlots::Take() {
  if (free_.empty()) return std::nullopt;
  const uint32_t slot = free_.front();
  free_.pop_front();
  taken_[slot] = true;
  return Name{TransferId{base_ | slot}, ++generations_[slot]};
}

void TransferSlots::Return(TransferId transfer) {
  const uint64_t slot = static_cast<uint64_t>(transfer) - base_;
  CHECK_LT(slot, taken_.size());
  CHECK(taken_[slot]) << "transfer slot " << slot << " is free";
  taken_[slot] = false;
  free_.push_back(static_cast<uint32_t>(slot));
}

}  // namespace baton::decode_worker
