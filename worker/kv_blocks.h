// The KV blocks of a worker and what is cached in them, and the staged blocks
// that KV is handed over through where it lies on a device (engine/kv_stage.h).
// A loop has its own; the two loops of a dual worker, which take turns on one
// thread, share theirs.
//
// Used by the worker's loop thread only.
#pragma once

#include <cstdint>
#include <optional>

#include "common/ids.h"
#include "engine/engine.h"
#include "engine/kv_stage.h"
#include "scheduling/block_pool.h"
#include "scheduling/prefix_cache.h"

namespace baton::worker {

// Staged blocks that each of so many loops may have at a time, where the engine
// has a stage. Two loops have halves: dual workers whose landings had all of
// them would wait for each other's sends for ever.
inline int32_t StagedShare(const engine::KvStage& stage, int32_t num_loops) {
  return stage.staged().layout.num_blocks / num_loops;
}

struct KvBlocks {
  // `prefix_cache`: whether full blocks are kept for prompts that begin alike.
  // `num_loops`: how many share them.
  KvBlocks(engine::Engine* engine, bool prefix_cache, int32_t num_loops = 1)
      : pool(engine->kv_layout().num_blocks),
        cache({.enabled = prefix_cache,
               .block_size = engine->kv_layout().block_size},
              &pool) {
    if (engine::KvStage* const stage = engine->kv_stage(); stage != nullptr) {
      staged.emplace(stage->staged().layout.num_blocks);
      staged_share = StagedShare(*stage, num_loops);
    }
  }

  // For a sequence that comes: no two that share these blocks have the same.
  SequenceId NextSequence() { return SequenceId{++last_sequence}; }

  uint64_t last_sequence = 0;
  // Of all loops that share these blocks, which wait for each other's: proof of
  // progress.
  uint64_t steps = 0;
  scheduling::BlockPool pool;
  scheduling::PrefixCache cache;
  std::optional<scheduling::BlockPool> staged;
  int32_t staged_share = 0;  // of a loop
};

}  // namespace baton::worker
