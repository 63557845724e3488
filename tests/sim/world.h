// What all parties of a simulation share. One thread.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "kv_transfer/handoff.h"
#include "tests/sim/control_network.h"
#include "tests/sim/coverage.h"
#include "tests/sim/dice.h"
#include "tests/sim/journal.h"
#include "tests/sim/sim_clock.h"
#include "tests/sim/sim_store.h"
#include "tests/support/fake_transport.h"

namespace baton::sim {

struct World {
  explicit World(uint64_t seed)
      : dice(seed),
        journal(&clock),
        data(seed),
        control(&dice, &journal, &coverage,
                [this](int party) { return awake(party); }) {}

  SimClock clock;
  Dice dice;
  Journal journal;
  Coverage coverage;
  // Whether a party stands still or runs; the simulation says.
  std::function<bool(int party)> awake;
  kv_transfer::FakeNetwork data;
  ControlNetwork control;
  // Of workers with an offload, by name.
  std::map<std::string, std::shared_ptr<SimDisk>> disks;
};

// Sizes and times of a cluster, small and short, so that everything is scarce
// and runs out.
struct ClusterPlan {
  int num_routers = 1;
  int num_prefill = 1;
  int num_decode = 1;
  // Workers that are both, beside those.
  int num_dual = 0;
  int prefill_blocks = 6;
  int decode_blocks = 6;
  int max_sequences = 4;
  int token_budget = 32;
  // Hand-offs at once, and so transfer slots, of a worker.
  int max_transfers = 4;
  int inbox_capacity = 16;
  bool prefix_cache = true;
  // Of decode workers: WorkerOptions.
  int output_reserve = 0;
  int swap_blocks = 0;
  double swap_seconds = 0;
  int draft_tokens = 0;
  bool draft_weights = false;
  // Of workers whose KV lies on a device; 0: it lies in the host's memory.
  int prefill_staged_blocks = 0;
  int decode_staged_blocks = 0;
  // Of all workers; 0: nothing is stored.
  int offload_places = 0;
  // Many answers take several blocks.
  bool long_outputs = false;
  kv_transfer::Fence removed_fence = kv_transfer::Fence::kNone;
};

}  // namespace baton::sim
