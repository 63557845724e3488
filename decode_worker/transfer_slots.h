// Names for incoming transfers. A name is a slot and a generation: the slot is
// used again once its transfer is over (the longest unused one first), and the
// generation counts how often it was. Whatever still comes of an earlier use
// names another generation, and is dropped.
//
// Used by the worker's loop thread only.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "common/ids.h"

namespace baton::decode_worker {

class TransferSlots final {
 public:
  struct Name {
    TransferId transfer{};
    uint32_t generation = 0;  // from 1
  };

  // Prefill workers hold transfers of several decode workers, so the ids are
  // made from the incarnation: two lives agree in the upper half once in 2^32.
  TransferSlots(uint64_t incarnation, uint32_t num_slots);

  // Nothing when all are in use.
  std::optional<Name> Take();
  // REQUIRES: `transfer` was taken, and neither side can name it any more.
  void Return(TransferId transfer);

  uint32_t num_taken() const {
    return static_cast<uint32_t>(generations_.size() - free_.size());
  }

 private:
  const uint64_t base_;
  std::vector<uint32_t> generations_;  // by slot
  std::vector<bool> taken_;            // by slot
  std::deque<uint32_t> free_;          // slots, longest unused first
};

}  // namespace baton::decode_worker
