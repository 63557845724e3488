// How long the gaps between tokens were, too many to keep: counted in classes
// that are each 1 % wider than the one before.
//
// Seconds; one thread.
#pragma once

#include <cstdint>
#include <vector>

#include "planner/step_run.h"
#include "workload/goodput.h"

namespace baton::planner {

class GapHistogram final {
 public:
  void Add(double seconds, int64_t times);
  // The steps of a run, each `times`.
  void AddRun(const StepRun& run, int64_t times);
  void Merge(const GapHistogram& other);

  int64_t count() const { return count_; }
  // Within 1 %; the mean and the largest are exact.
  workload::Percentiles Milliseconds() const;

 private:
  std::vector<int64_t> classes_;
  int64_t count_ = 0;
  double sum_ = 0;
  double most_ = 0;
};

}  // namespace baton::planner
