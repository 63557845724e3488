// The KV blocks of a worker and what is cached in them and stored besides
// (kv_offload.h), and the staged blocks that KV is handed over through where it
// lies on a device (engine/kv_stage.h).
// A loop has its own; the two loops of a dual worker, which take turns on one
// thread, share theirs.
//
// Used by the worker's loop thread only.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "common/clock.h"
#include "common/ids.h"
#include "common/log.h"
#include "engine/engine.h"
#include "engine/kv_stage.h"
#include "scheduling/block_pool.h"
#include "scheduling/prefix_cache.h"
#include "scheduling/sequence.h"
#include "worker/kv_offload.h"
#include "worker/kv_store.h"

namespace baton::worker {

// Staged blocks that each of so many loops may have at a time, where the engine
// has a stage. Two loops have halves: dual workers whose landings had all of
// them would wait for each other's sends for ever. An offload has some, too.
inline int32_t StagedOffloadShare(const engine::KvStage& stage) {
  return std::max(1, stage.staged().layout.num_blocks / 8);
}
inline int32_t StagedShare(const engine::KvStage& stage, int32_t num_loops,
                           bool offload) {
  return (stage.staged().layout.num_blocks -
          (offload ? StagedOffloadShare(stage) : 0)) /
         num_loops;
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
      staged_share = StagedShare(*stage, num_loops, /*offload=*/false);
    }
  }

  // Before a loop has them, for as many as in the constructor. Of `parts`,
  // engine and clock, and what else is not as usual. REQUIRES: the prefix cache
  // is on; the store is of the engine's KV memory, or its stage's.
  void AddOffload(std::unique_ptr<KvStore> store, KvOffload::Parts parts,
                  int32_t num_loops = 1) {
    CHECK(cache.enabled() && offload == nullptr);
    parts.pool = &pool;
    parts.cache = &cache;
    if (engine::KvStage* const stage = parts.engine->kv_stage();
        stage != nullptr) {
      parts.staged = &*staged;
      parts.staged_share = StagedOffloadShare(*stage);
      staged_share = StagedShare(*stage, num_loops, /*offload=*/true);
    }
    offload = std::make_unique<KvOffload>(parts, std::move(store));
  }

  // The sequence is over, or gives its blocks up; `keep`: what it computed may
  // be stored.
  void Leave(scheduling::Sequence* sequence, bool keep) {
    if (offload == nullptr) return;
    offload->StopLoading(sequence);
    if (keep) offload->Save(*sequence);
  }

  // Nothing that is cached or stored can be trusted.
  void ClearPrefixes() {
    cache.Clear();
    if (offload != nullptr) offload->Clear();
  }

  // What is stored, as a cache of the store's places; null: nothing ever is.
  scheduling::PrefixCache* stored() {
    return offload == nullptr ? nullptr : &offload->stored();
  }

  // Once a turn.
  void Poll() {
    if (offload == nullptr) return;
    offload->Poll();
    if (observe_offload) observe_offload(*offload);
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
  int32_t staged_share = 0;            // of a loop
  std::unique_ptr<KvOffload> offload;  // null: there is none
  // For metrics: after each turn. May be null.
  std::function<void(const KvOffload&)> observe_offload;
};

}  // namespace baton::worker
