// What planner tests draw at random, from a seed. One thread.
#pragma once

#include <cstdint>
#include <random>

#include "scheduling/step_cost.h"

namespace baton::planner {

class Dice final {
 public:
  explicit Dice(uint64_t seed) : random_(seed) {}
  int32_t Whole(int32_t from, int32_t to) {
    return std::uniform_int_distribution<int32_t>(from, to)(random_);
  }
  double Real(double from, double to) {
    return std::uniform_real_distribution<double>(from, to)(random_);
  }
  bool Chance(double share) { return Real(0, 1) < share; }

 private:
  std::mt19937_64 random_;
};

inline scheduling::StepCost DrawCost(Dice* dice) {
  return {.fixed = dice->Real(1e-3, 1e-2),
          .per_token = dice->Real(1e-5, 1e-3),
          .per_context_token = dice->Real(0, 1e-6),
          .per_sequence = dice->Real(0, 1e-4),
          .per_prompt_context_token = dice->Real(0, 1e-6)};
}

}  // namespace baton::planner
