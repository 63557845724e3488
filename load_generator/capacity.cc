#include "load_generator/capacity.h"

#include <cmath>

#include "common/log.h"
#include "common/status_macros.h"

namespace baton::load_generator {

absl::StatusOr<Capacity> FindCapacity(
    const CapacityOptions& options,
    const std::function<absl::StatusOr<CapacityTrial>(double rate)>& trial) {
  CHECK_GT(options.first_rate, 0);
  CHECK_GT(options.precision, 0);
  Capacity capacity;
  double fails = 0;  // the lowest rate that failed; 0: none
  double rate = options.first_rate;
  while (static_cast<int>(capacity.trials.size()) < options.max_trials) {
    BATON_ASSIGN_OR_RETURN(const CapacityTrial done, trial(rate));
    capacity.trials.push_back(done);
    if (done.attainment >= options.attainment) {
      capacity.rate = rate;
    } else {
      fails = rate;
    }
    if (fails == 0) {
      rate *= 2;
    } else if (capacity.rate == 0) {
      rate /= 2;
    } else if (fails / capacity.rate <= 1 + options.precision) {
      break;
    } else {
      rate = std::sqrt(fails * capacity.rate);
    }
  }
  capacity.bounded = fails > 0;
  return capacity;
}

}  // namespace baton::load_generator
