// What counts as an answer that was good enough, and percentiles of latencies:
// the same for what was measured (load_generator) and what was simulated
// (planner). docs/load_generator.md says what the words mean.
//
// Pure; any thread.
#pragma once

#include <vector>

#include "absl/time/time.h"
#include "common/json.h"

namespace baton::workload {

// What a request must keep to count; zero: anything will do.
struct Targets {
  absl::Duration ttft;
  // Of the time per output token (TPOT).
  absl::Duration itl;

  // Whether a request that finished, with these times of its own, has met
  // them.
  bool Met(absl::Duration request_ttft, absl::Duration request_tpot) const;
};

// In milliseconds, by nearest rank; NaN of nothing.
struct Percentiles {
  double mean = 0, p50 = 0, p90 = 0, p99 = 0, max = 0;
};

Percentiles PercentilesOf(std::vector<double> milliseconds);

// {"mean": ..., "p50": ..., ...}; null for NaN, which JSON does not have.
nlohmann::ordered_json PercentilesJson(const Percentiles& percentiles);

}  // namespace baton::workload
