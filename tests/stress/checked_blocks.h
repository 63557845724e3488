// The KV blocks of a stressed worker: given out as a worker does, the one freed
// last first, and watched: a block that nobody has holds a known pattern, and a
// write must find the block in the hands of whom it is for. What is not so is a
// violation (notes.h).
//
// Take, Give and what they return: one thread. CheckWrite: any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "scheduling/block_pool.h"
#include "tests/kv_transfer/kv_fixture.h"

namespace baton::stress {

class CheckedBlocks final {
 public:
  // A transfer and its generation, as messages name it.
  using Owner = std::pair<uint64_t, uint32_t>;

  CheckedBlocks(int32_t num_layers, int32_t num_blocks, int64_t page_bytes);

  kv_transfer::KvMemory& memory() { return memory_; }
  int32_t num_in_use() const { return pool_.num_in_use(); }

  // `count` blocks that nobody has touched since they were given back; nothing
  // when there are not as many.
  std::optional<scheduling::PooledBlocks> Take(Owner owner, int32_t count)
      ABSL_LOCKS_EXCLUDED(mu_);
  void Give(scheduling::PooledBlocks blocks) ABSL_LOCKS_EXCLUDED(mu_);

  // `bytes`, of memory(), are about to be written for `owner`.
  void CheckWrite(Owner owner, absl::Span<const std::byte> bytes)
      ABSL_LOCKS_EXCLUDED(mu_);

 private:
  kv_transfer::KvMemory memory_;
  scheduling::BlockPool pool_;
  const std::vector<std::byte> untouched_;  // a page

  absl::Mutex mu_;
  std::vector<std::optional<Owner>> owners_ ABSL_GUARDED_BY(mu_);
};

}  // namespace baton::stress
