#include "planner/step_run.h"

#include <algorithm>
#include <cmath>

namespace baton::planner {

double StepRun::EndOf(int64_t steps) const {
  const auto n = static_cast<double>(steps);
  return start + n * first + growth * (n * (n - 1) / 2);
}

int64_t StepRun::StepsUntil(double now) const {
  if (now <= start) return 0;
  if (now >= end()) return count;
  // growth / 2 * n^2 + (first - growth / 2) * n = now - start, in the form that
  // keeps its digits when growth is small.
  const double b = first - growth / 2;
  const double past = now - start;
  const double root = std::sqrt(b * b + 2 * growth * past);
  const double n = 2 * past / (b + root);
  int64_t steps = std::clamp<int64_t>(static_cast<int64_t>(n), 0, count);
  // Rounding may have put it on the wrong side.
  while (steps > 0 && EndOf(steps - 1) >= now) --steps;
  while (steps < count && EndOf(steps) < now) ++steps;
  return steps;
}

void StepRun::CutAt(double now) {
  if (count > 1) count = std::max<int64_t>(1, StepsUntil(now));
}

int64_t StepRun::StepsOver(double now) const {
  const int64_t until = StepsUntil(now);
  return EndOf(until) <= now ? until : std::max<int64_t>(0, until - 1);
}

}  // namespace baton::planner
