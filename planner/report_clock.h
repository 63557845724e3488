// When the workers of a simulated cluster report: each every 100 ms while
// something changes there, not all at once.
//
// Seconds of the virtual clock. One thread.
#pragma once

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace baton::planner {

class ReportClock final {
 public:
  explicit ReportClock(size_t workers) : is_due_(workers) {}

  // Something changed there: it is to report.
  void Changed(size_t worker, double now) {
    if (is_due_[worker]) return;
    is_due_[worker] = true;
    groups_[worker % kGroups].push_back(worker);
    if (num_due_++ > 0) return;
    const auto tick = static_cast<int64_t>(std::floor(now / kTick));
    if (tick > tick_) tick_ = tick;
  }

  // When Tick is to be called; infinity while nobody is to report.
  double next() const {
    return num_due_ == 0 ? std::numeric_limits<double>::infinity()
                         : static_cast<double>(tick_ + 1) * kTick;
  }

  // Calls report(worker) for those whose time it is; true: it is to report
  // again, even if nothing more happens there.
  template <typename Report>
  void Tick(Report report) {
    ++tick_;
    std::vector<size_t>& group = groups_[static_cast<size_t>(tick_) % kGroups];
    size_t kept = 0;
    for (const size_t worker : group) {
      if (report(worker)) {
        group[kept++] = worker;
      } else {
        is_due_[worker] = false;
        --num_due_;
      }
    }
    group.resize(kept);
  }

 private:
  static constexpr double kTick = 0.01;
  static constexpr size_t kGroups = 10;

  int64_t tick_ = 0;  // the last one
  std::array<std::vector<size_t>, kGroups> groups_;
  std::vector<bool> is_due_;  // by worker
  size_t num_due_ = 0;
};

}  // namespace baton::planner
