// A stress run: two senders and two receivers in processes of their own, KV
// handed from the ones to the others many transfers at a time, and whatever can
// happen to them: transfers aborted on either side, deadlines too short, leases
// that nobody renews, workers killed, stopped, started again. Everything is
// drawn from the seed; what the processes make of it depends on the machine, so
// a seed that failed once is run again a few times.
//
// What must hold is checked at every event, by the workers (stress_worker.h)
// and by the driver (ledger.h), and at the end: nothing open, nothing in
// quarantine, no block in use, every process ends with status 0.
//
// One thread.
#pragma once

#include <cstdint>
#include <string>

#include "absl/time/time.h"
#include "kv_transfer/handoff.h"

namespace baton::stress {

struct StressOptions {
  // At least this long, and on until enough happened or, without a fence, until
  // the violation, ever slower, however slow the machine is; but not beyond
  // `longest`, unless `duration` is.
  absl::Duration duration = absl::Seconds(10);
  absl::Duration longest = absl::Seconds(100);
  uint64_t seed = 1;
  // "mixed": every sender draws "ucx", "tcp" or "auto".
  std::string transport = "mixed";
  // Most transfers at once, of each receiver.
  int max_open = 12;
  kv_transfer::Fence removed_fence = kv_transfer::Fence::kNone;
  // Lets the workers' logs through.
  bool log = false;
};

// Ends the process at the first violation (notes.h). Returns what happened, in
// a line, and whether enough did for the run to mean anything.
struct StressReport {
  std::string text;
  bool covered = false;
};
StressReport RunStress(const StressOptions& options);

}  // namespace baton::stress
