// Steps in a row that do the same work, each with a little more context than
// the one before: their times in closed form, so that a simulation need not
// take them one by one.
//
// Seconds of the virtual clock; pure; any thread.
#pragma once

#include <cstdint>

namespace baton::planner {

// Step i, from 0, takes first + i * growth.
struct StepRun {
  double start = 0;
  double first = 0;   // > 0
  double growth = 0;  // >= 0
  int64_t count = 0;

  double Duration(int64_t step) const {
    return first + growth * static_cast<double>(step);
  }
  // When `steps` of them are over.
  double EndOf(int64_t steps) const;
  double end() const { return EndOf(count); }
  // The least number of steps, at most `count`, that are not over before `now`:
  // what comes at `now` has to wait for their end.
  int64_t StepsUntil(double now) const;
  // How many are over at `now`, at most `count`.
  int64_t StepsOver(double now) const;

  // What comes at `now` makes the steps after that one others: the last step
  // is that which is not over before `now`, if there is a step at all.
  void CutAt(double now);
  // The last one's duration; without steps, the first one's.
  double Last() const { return Duration(count > 0 ? count - 1 : 0); }
};

}  // namespace baton::planner
