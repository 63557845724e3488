// How many workers of each kind a load takes, by simulating it.
//
// Pure but for `progress`; one thread.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "planner/cluster_simulation.h"
#include "planner/simulation_result.h"
#include "workload/planned_request.h"

namespace baton::planner {

// Requests in the order of their times, and the time in which they come.
struct Load {
  std::vector<workload::PlannedRequest> requests;
  absl::Duration window;
};

// One cluster that was simulated.
struct PlanTrial {
  int32_t num_prefill = 0;
  int32_t num_decode = 0;
  SimulationResult result;

  int32_t num_workers() const { return num_prefill + num_decode; }
};

struct PlanOptions {
  // Its numbers of workers are the search's own.
  SimulationOptions simulation;
  // Of both kinds together, 1 <= least <= most.
  int32_t least_workers = 1;
  int32_t most_workers = 256;
  // The share of requests that is to meet the targets, in (0, 1].
  double attainment = 0.9;
  // No prefill workers. REQUIRES: simulation.allow_local_prefill.
  bool only_aggregated = false;
  // Told of each trial; may be empty.
  std::function<void(const PlanTrial&)> progress;
};

struct Plan {
  // Whether the attainment is kept; else `best` is what comes nearest with the
  // most workers.
  bool found = false;
  PlanTrial best;
  // All splits of as many workers that were tried, by prefill workers.
  std::vector<PlanTrial> splits;
  // The largest number of workers that was tried and did not do; 0: none.
  int32_t too_few = 0;
};

class PlanSearch final {
 public:
  // `load` outlives this. REQUIRES: simulation options that are valid with one
  // worker of each kind.
  PlanSearch(const PlanOptions& options, const Load* load);

  // The fewest workers that keep the attainment, split in the best way.
  // Attainment is taken to grow with the number of workers: of many, the
  // answer may be a few per cent off.
  Plan Find();

  // The best split of so many workers: the highest attainment, and of equal
  // ones that which leaves most of the targets' time.
  Plan BestSplit(int32_t workers);

 private:
  // Whether some split of so many keeps the attainment; which one.
  std::optional<double> FindShare(int32_t workers);
  const PlanTrial& Try(int32_t num_prefill, int32_t workers, bool to_the_end);
  // Splits to try first, and then those between neighbours of the best.
  std::vector<int32_t> CoarseSplits(int32_t workers) const;
  int32_t LeastPrefill() const;
  int32_t MostPrefill(int32_t workers) const;

  const PlanOptions options_;
  const Load* const load_;
  const int64_t most_misses_;
  // Of the last cluster that was found to do: prefill workers among all.
  double share_ = 0.5;
  // By prefill workers and all workers.
  std::map<std::pair<int32_t, int32_t>, PlanTrial> trials_;
};

// A plan under other loads and targets.
struct SensitivityCell {
  double load_factor = 1;
  double target_factor = 1;
  double attainment = 0;
  double goodput = 0;
};

// `load` makes the load times a factor; its errors end it.
absl::StatusOr<std::vector<SensitivityCell>> Sensitivity(
    const SimulationOptions& options, const std::vector<double>& load_factors,
    const std::vector<double>& target_factors,
    const std::function<absl::StatusOr<Load>(double factor)>& load);

}  // namespace baton::planner
