// The KV of sequences that gave their blocks up, in the host's memory, until
// there are blocks for it again. Bounded in bytes.
//
// Used by the worker's loop thread only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/types/span.h"
#include "common/clock.h"
#include "common/ids.h"
#include "engine/kv_copy.h"
#include "engine/kv_layout.h"

namespace baton::decode_worker {

class SwapStore;

// What the store keeps of one sequence; given up by destroying it. Movable.
// Must not outlive the store.
class SwappedKv final {
 public:
  SwappedKv(SwappedKv&& other) noexcept;
  SwappedKv& operator=(SwappedKv&&) = delete;
  ~SwappedKv();

  int32_t num_blocks() const { return num_blocks_; }

 private:
  friend class SwapStore;
  SwappedKv(SwapStore* store, int32_t num_blocks);
  absl::Span<std::byte> bytes() const;

  SwapStore* store_;
  int32_t num_blocks_;
  std::unique_ptr<std::byte[]> bytes_;
};

class SwapStore final {
 public:
  // The clock and `copy` outlive the store. `capacity_bytes` >= 0.
  SwapStore(int64_t capacity_bytes, const engine::KvLayout& layout,
            engine::KvCopy* copy, const Clock* clock);
  ~SwapStore();

  int64_t BytesOf(int32_t num_blocks) const;
  // What it still takes, and what it holds.
  int64_t room() const { return capacity_ - bytes_; }
  int64_t bytes() const { return bytes_; }
  int num_sequences() const { return num_sequences_; }

  // Copies the blocks out. REQUIRES: there is room for them.
  SwappedKv Save(absl::Span<const BlockId> blocks);
  // Copies them back, into as many others.
  void Restore(const SwappedKv& kv, absl::Span<const BlockId> blocks);

  // One way, of the last copies; 0: there was none yet.
  double bytes_per_second() const;
  // Of the last copy.
  double last_seconds() const { return last_seconds_; }

 private:
  friend class SwappedKv;
  void Measured(double bytes, double seconds);

  const int64_t capacity_;
  const engine::KvLayout layout_;
  engine::KvCopy* const copy_;
  const Clock* const clock_;
  int64_t bytes_ = 0;
  int num_sequences_ = 0;
  // Sums over the copies, with forgetting.
  double copied_bytes_ = 0;
  double copied_seconds_ = 0;
  double last_seconds_ = 0;
};

}  // namespace baton::decode_worker
