// Looks into the workers' loops: who holds which blocks. Their only friend.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/ids.h"
#include "scheduling/block_pool.h"
#include "scheduling/prefix_cache.h"

namespace baton::decode_worker {
class DecodeLoop;
}
namespace baton::prefill_worker {
class PrefillLoop;
}

namespace baton::sim {

// Everything in a loop that holds something.
struct LoopView {
  struct Holder {
    SequenceId sequence{};  // of an attempt
    bool quarantined = false;
    bool over = false;       // of one that is over, for a step ahead
    bool transfers = false;  // an attempt with a transfer under way
    bool fills = false;      // loads into them, beside the attempt
    bool drains = false;     // stores them
    int32_t cached = 0;      // tokens that it found in the prefix cache
    absl::string_view salt;  // of an attempt
    absl::Span<const BlockId> blocks;
  };
  const scheduling::BlockPool* pool = nullptr;
  const scheduling::PrefixCache* cache = nullptr;
  // Of a worker whose KV lies on a device, else null; and who holds staged
  // blocks.
  const scheduling::BlockPool* staged_pool = nullptr;
  std::vector<absl::Span<const BlockId>> staged_holders;
  ptrdiff_t num_offload_staged = 0;  // first
  std::vector<Holder> holders;
  int num_attempts = 0;
  uint32_t transfers_open = 0;
  uint32_t transfers_quarantined = 0;
  uint64_t peers_closed_by_force = 0;
  // Decode workers: preempted sequences whose KV waits in the host's memory,
  // and how often what happened.
  int num_waiting_swapped = 0;
  int64_t num_recomputed = 0;
  int64_t num_swapped = 0;
  int64_t num_brought_back = 0;

  // The other side of a dual worker, which has the same blocks.
  void Add(const LoopView& other);
};

class LoopInspector final {
 public:
  // Valid until the loop's next turn.
  static LoopView Of(const decode_worker::DecodeLoop& loop);
  static LoopView Of(const prefill_worker::PrefillLoop& loop);

 private:
  template <typename Loop>
  static LoopView ViewOf(const Loop& loop);
};

}  // namespace baton::sim
