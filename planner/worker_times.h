// When each of many workers is next to be looked at, and which comes first: a
// binary heap in which every worker has one place.
//
// One thread.
#pragma once

#include <cstddef>
#include <limits>
#include <utility>
#include <vector>

namespace baton::planner {

class WorkerTimes final {
 public:
  static constexpr double kNever = std::numeric_limits<double>::infinity();

  explicit WorkerTimes(size_t count) : times_(count, kNever), places_(count) {
    for (size_t i = 0; i < count; ++i) heap_.push_back(places_[i] = i);
  }

  // Of the first one; kNever without any. Of equal times, the lower number.
  double next_time() const {
    return heap_.empty() ? kNever : times_[heap_.front()];
  }
  size_t next_worker() const { return heap_.front(); }
  double time(size_t worker) const { return times_[worker]; }

  void Set(size_t worker, double time) {
    if (times_[worker] == time) return;
    times_[worker] = time;
    Up(places_[worker]);
    Down(places_[worker]);
  }

 private:
  bool Before(size_t a, size_t b) const {
    return std::make_pair(times_[heap_[a]], heap_[a]) <
           std::make_pair(times_[heap_[b]], heap_[b]);
  }
  void Swap(size_t a, size_t b) {
    std::swap(heap_[a], heap_[b]);
    places_[heap_[a]] = a;
    places_[heap_[b]] = b;
  }
  void Up(size_t place) {
    while (place > 0 && Before(place, (place - 1) / 2)) {
      Swap(place, (place - 1) / 2);
      place = (place - 1) / 2;
    }
  }
  void Down(size_t place) {
    while (true) {
      size_t first = place;
      for (size_t child = 2 * place + 1;
           child < heap_.size() && child <= 2 * place + 2; ++child) {
        if (Before(child, first)) first = child;
      }
      if (first == place) return;
      Swap(first, place);
      place = first;
    }
  }

  std::vector<double> times_;   // by worker
  std::vector<size_t> places_;  // by worker, in heap_
  std::vector<size_t> heap_;
};

}  // namespace baton::planner
