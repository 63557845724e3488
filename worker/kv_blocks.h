// The KV blocks of a worker and what is cached in them. A loop has its own; the
// two loops of a dual worker, which take turns on one thread, share theirs.
//
// Used by the worker's loop thread only.
#pragma once

#include <cstdint>

#include "common/ids.h"
#include "engine/kv_layout.h"
#include "scheduling/block_pool.h"
#include "scheduling/prefix_cache.h"

namespace baton::worker {

struct KvBlocks {
  // `prefix_cache`: whether full blocks are kept for prompts that begin alike.
  KvBlocks(const engine::KvLayout& layout, bool prefix_cache)
      : pool(layout.num_blocks),
        cache({.enabled = prefix_cache, .block_size = layout.block_size},
              &pool) {}

  // For a sequence that comes: no two that share these blocks have the same.
  SequenceId NextSequence() { return SequenceId{++last_sequence}; }

  uint64_t last_sequence = 0;
  // Of all loops that share these blocks, which wait for each other's: proof of
  // progress.
  uint64_t steps = 0;
  scheduling::BlockPool pool;
  scheduling::PrefixCache cache;
};

}  // namespace baton::worker
