// What must hold on a worker after every event. What must hold for a client is
// in client.h.
//
//   1. Blocks: each is free, or held by attempts, quarantined transfers and the
//      prefix cache, and by nobody else. Only what is cached has several
//      holders.
//   2. What is cached is the KV of the tokens that it goes by, and no transfer
//      can still write to it.
//   3. A step runs in blocks of its own sequences, into none of which a
//      transfer can still write. What it writes, or will write, belongs to one
//      sequence alone and is not cached; nothing is loaded into it.
//   4. What a transfer may still write or read is held for a transfer.
//   5. Staged blocks are free or held by one transfer. What the data plane or a
//      copy may still write or read of them is held.
//   6. In the end, nothing is left: no attempt, no transfer, no block that is
//      neither free nor there for the taking.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "engine/kv_layout.h"
#include "scheduling/step_plan.h"
#include "tests/sim/journal.h"
#include "tests/sim/loop_inspector.h"
#include "tests/sim/sim_engine.h"

namespace baton::sim {

void CheckBlocks(const std::string& worker, const LoopView& view,
                 Journal* journal);

// Of entries with numbers above `above`, and of all whom they are shared with;
// the highest number there is.
uint64_t CheckCached(const std::string& worker, const LoopView& view,
                     uint64_t above, const SimEngine& engine, Journal* journal);

// A worker's KV memory, and what the data plane, or copies from its stage, may
// still do to it.
struct KvInUse {
  const engine::KvLayout* layout = nullptr;
  const std::byte* memory = nullptr;
  std::vector<absl::Span<const std::byte>> landings;  // written
  std::vector<absl::Span<const std::byte>> sends;     // read

  // By block, whether one of `spans` lies in it.
  std::vector<bool> BlocksOf(
      const std::vector<absl::Span<const std::byte>>& spans) const;
};

void CheckTransfers(const std::string& worker, const LoopView& view,
                    const KvInUse& kv, Journal* journal);

// `in_use`: staged blocks that copies may still touch; `kv`: of the staged
// memory.
void CheckStaged(const std::string& worker, const LoopView& view,
                 const KvInUse& kv, const std::vector<BlockId>& in_use,
                 Journal* journal);

// `is_ahead`: it was planned earlier, and may have sequences that are over.
void CheckPlan(const std::string& worker, const LoopView& view,
               const scheduling::StepPlan& plan, const KvInUse& kv,
               bool is_ahead, Journal* journal);

void CheckNothingIsLeft(const std::string& worker, const LoopView& view,
                        Journal* journal);

}  // namespace baton::sim
