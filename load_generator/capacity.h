// Goodput capacity: the highest rate of requests at which enough of them still
// meet their targets (DistServe's sense; STYLE's glossary).
//
// Pure but for the trials, which the caller runs.
#pragma once

#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace baton::load_generator {

struct CapacityTrial {
  double rate = 0;  // offered
  double attainment = 0;
  double goodput = 0;
};

struct CapacityOptions {
  double first_rate = 1;    // > 0
  double attainment = 0.9;  // wanted, in (0, 1]
  double precision = 0.05;  // of the rate
  int max_trials = 12;
};

struct Capacity {
  // Of the highest rate that kept the attainment; 0 when none did.
  double rate = 0;
  // Whether a higher rate was seen to fail: else there is more than `rate`.
  bool bounded = false;
  std::vector<CapacityTrial> trials;  // in the order in which they were run
};

// Doubles the rate until a trial fails (or halves it until one does not), then
// halves the interval between, by ratio. `trial` runs one; its errors end the
// search.
absl::StatusOr<Capacity> FindCapacity(
    const CapacityOptions& options,
    const std::function<absl::StatusOr<CapacityTrial>(double rate)>& trial);

}  // namespace baton::load_generator
