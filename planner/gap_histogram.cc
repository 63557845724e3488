#include "planner/gap_histogram.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>

namespace baton::planner {
namespace {

constexpr double kLeast = 1e-7;  // seconds; shorter ones are in the first class
const double kLogRatio = std::log(1.01);

size_t ClassOf(double seconds) {
  if (seconds <= kLeast) return 0;
  return static_cast<size_t>(std::log(seconds / kLeast) / kLogRatio) + 1;
}

// Its upper end.
double EndOfClass(size_t number) {
  return kLeast * std::exp(static_cast<double>(number) * kLogRatio);
}

}  // namespace

void GapHistogram::Add(double seconds, int64_t times) {
  if (times <= 0) return;
  const size_t number = ClassOf(seconds);
  if (number >= classes_.size()) classes_.resize(number + 1);
  classes_[number] += times;
  count_ += times;
  sum_ += seconds * static_cast<double>(times);
  most_ = std::max(most_, seconds);
}

void GapHistogram::AddRun(const StepRun& run, int64_t times) {
  if (times <= 0 || run.count <= 0) return;
  // Steps become longer: class by class, those that are in it.
  for (int64_t step = 0; step < run.count;) {
    const size_t number = ClassOf(run.Duration(step));
    int64_t next = run.count;
    if (run.growth > 0) {
      const double steps =
          std::ceil((EndOfClass(number) - run.first) / run.growth);
      if (steps < static_cast<double>(run.count)) {
        next = std::max(step + 1, static_cast<int64_t>(steps));
      }
    }
    if (number >= classes_.size()) classes_.resize(number + 1);
    classes_[number] += (next - step) * times;
    step = next;
  }
  count_ += run.count * times;
  sum_ += (run.end() - run.start) * static_cast<double>(times);
  most_ = std::max(most_, run.Duration(run.count - 1));
}

void GapHistogram::Merge(const GapHistogram& other) {
  if (other.classes_.size() > classes_.size()) {
    classes_.resize(other.classes_.size());
  }
  for (size_t i = 0; i < other.classes_.size(); ++i) {
    classes_[i] += other.classes_[i];
  }
  count_ += other.count_;
  sum_ += other.sum_;
  most_ = std::max(most_, other.most_);
}

workload::Percentiles GapHistogram::Milliseconds() const {
  workload::Percentiles p;
  if (count_ == 0) return workload::PercentilesOf({});
  const auto at = [&](double share) {
    const double rank = std::ceil(share * static_cast<double>(count_));
    int64_t seen = 0;
    for (size_t i = 0; i < classes_.size(); ++i) {
      seen += classes_[i];
      if (static_cast<double>(seen) >= rank) {
        return 1e3 * std::min(EndOfClass(i), most_);
      }
    }
    return 1e3 * most_;
  };
  p.mean = 1e3 * sum_ / static_cast<double>(count_);
  p.p50 = at(0.5);
  p.p90 = at(0.9);
  p.p99 = at(0.99);
  p.max = 1e3 * most_;
  return p;
}

}  // namespace baton::planner
