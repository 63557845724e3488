// All chance of a simulation: one generator, from the seed. Whoever draws, and
// in which order, is part of what a seed means.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <random>

#include "common/log.h"

namespace baton::sim {

class Dice final {
 public:
  explicit Dice(uint64_t seed) : random_(seed) {}

  uint64_t Word() { return random_(); }
  // In [0, bound). REQUIRES: bound >= 1.
  int Below(int bound) {
    CHECK_GE(bound, 1);
    return static_cast<int>(random_() % static_cast<uint64_t>(bound));
  }
  // In [low, high].
  int Between(int low, int high) { return low + Below(high - low + 1); }
  bool Chance(double probability) {
    return static_cast<double>(random_() >> 11) * 0x1p-53 < probability;
  }
  // Loses what is behind a place drawn at random.
  template <typename T>
  void CutShort(std::deque<T>* queue) {
    queue->resize(
        static_cast<size_t>(Between(0, static_cast<int>(queue->size()))));
  }

 private:
  std::mt19937_64 random_;
};

}  // namespace baton::sim
