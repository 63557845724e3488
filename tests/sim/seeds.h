// Running simulations one seed after the other, for the test and for the
// program. One thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "kv_transfer/handoff.h"
#include "tests/sim/coverage.h"

namespace baton::sim {

// What a row of seeds came to.
struct SeedsReport {
  uint64_t num_run = 0;
  // The first one that broke an invariant, how, and what happened before.
  std::optional<uint64_t> failed_seed;
  std::string violation;
  std::string last_events;
  // How to run it again.
  std::string replay;
  Coverage coverage;
  // Of all runs.
  uint64_t digest = 0;
};

// Logs nothing from now on: failed transfers and lost workers are what all of
// this is about.
void StayQuiet();

// Runs the seeds [first, first + count), up to the first that fails. When a
// CHECK of the product fails, the process says which seed it was and aborts.
SeedsReport RunSeeds(
    uint64_t first, uint64_t count,
    kv_transfer::Fence removed_fence = kv_transfer::Fence::kNone);

}  // namespace baton::sim
