// What must hold on a worker after every event. What must hold for a client is
// in client.h.
//
//   1. Blocks: each is free, or held by exactly one attempt or quarantined
//      transfer.
//   2. A step reads and writes blocks of its own sequences only, each of one
//      sequence only, and into none of them can a transfer still write.
//   3. What a transfer may still write or read is held for a transfer.
//   4. In the end, nothing is left: no attempt, no transfer, no block in use.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "engine/kv_layout.h"
#include "scheduling/step_plan.h"
#include "tests/sim/journal.h"
#include "tests/sim/loop_inspector.h"

namespace baton::sim {

void CheckBlocks(const std::string& worker, const LoopView& view,
                 Journal* journal);

// A worker's KV memory, and what the data plane may still do to it.
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

void CheckPlan(const std::string& worker, const LoopView& view,
               const scheduling::StepPlan& plan, const KvInUse& kv,
               Journal* journal);

void CheckNothingIsLeft(const std::string& worker, const LoopView& view,
                        Journal* journal);

}  // namespace baton::sim
