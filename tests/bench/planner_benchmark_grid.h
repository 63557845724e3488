// Ways of serving a mix with a number of workers: what each of them carries,
// and which split carries the most.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <vector>

#include "planner/cluster_simulation.h"
#include "planner/plan_search.h"
#include "planner/simulation_result.h"
#include "tests/bench/planner_benchmark_mixes.h"

namespace baton::bench {

class GridRow final {
 public:
  // kDual: workers that change their roles; the split is how they begin.
  enum class Way { kAggregated, kDisaggregated, kDefault, kDual };
  // Those that Find looks at: all but the last one.
  static constexpr int kWays = 3;
  // Per worker: what a way just carries, and its share of prefill workers then.
  struct Limit {
    double rate = 0;
    double prefill = 0;
  };
  using Limits = std::array<Limit, kWays>;
  struct Served {
    double goodput = 0;
    int32_t prefill = 0;
  };

  // Runs take at least so long.
  GridRow(const Mix& mix, int32_t workers, double split_share = 0,
          double least_seconds = 0)
      : mix_(mix),
        workers_(workers),
        split_share_(split_share),
        least_seconds_(least_seconds) {}

  // By search. Of many workers, only about the splits that are the best of few.
  Limits Find() const;
  // The search begins at `rate`, of all workers.
  Limit LimitOfSplit(Way way, int32_t prefill, double rate) const;

  // The most of a load that the way serves in time, with whatever split, of
  // sixteenths.
  Served MostOf(const planner::Load& load, Way way) const;

  // Whether each way carries a little less than these, and a little more: what
  // they were found with was another number of workers.
  void PrintCheck(const Limits& limits) const;
  void Print(const Limits& limits, const std::vector<double>& factors) const;

  int32_t PrefillOf(const Limit& limit) const;
  // With so many requests per second.
  planner::Load LoadOf(double rate) const;
  planner::SimulationResult Run(const planner::Load& load, int32_t prefill,
                                Way way) const;

 private:
  planner::SimulationOptions Options(int32_t prefill, Way way) const;
  double Goodput(const planner::Load& load, int32_t prefill, Way way) const;
  bool Carries(double rate, int32_t prefill, Way way) const;
  double Attainment(double rate, int32_t prefill, Way way) const;
  double Capacity(int32_t prefill, Way way, double rate) const;
  // The best split of sixteenths, and its limit: of those that are named, and
  // those beside the best one of them.
  Limit LimitOf(Way way, double rate,
                std::initializer_list<int32_t> splits) const;
  // Beside what the better of two ways carries, per worker.
  void PrintBound(double better) const;

  const Mix& mix_;
  const int32_t workers_;
  const double split_share_;
  const double least_seconds_;
};

}  // namespace baton::bench
