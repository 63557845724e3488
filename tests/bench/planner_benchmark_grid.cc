#include "tests/bench/planner_benchmark_grid.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "absl/time/time.h"
#include "tests/bench/planner_benchmark_bound.h"

namespace baton::bench {
namespace {

using planner::Load;
using planner::SimulationOptions;
using planner::SimulationResult;

constexpr int32_t kFewWorkers = 16;

}  // namespace

GridRow::Limits GridRow::Find() const {
  Limits limits;
  if (workers_ > kFewWorkers) {
    const Limits of_few =
        GridRow(mix_, kFewWorkers, split_share_, least_seconds_).Find();
    for (int way = 0; way < kWays; ++way) {
      const Limit& few = of_few[way];
      limits[way] =
          LimitOf(static_cast<Way>(way), few.rate * workers_,
                  {static_cast<int32_t>(std::lround(16 * few.prefill))});
    }
    return limits;
  }
  double rate = mix_.first_rate * workers_;
  for (int way = 0; way < kWays; ++way) {
    limits[way] =
        LimitOf(static_cast<Way>(way), rate, {8, 12, 4, 6, 10, 14, 2, 0});
    rate = std::max(rate / 2, limits[way].rate * workers_);
  }
  return limits;
}

GridRow::Limit GridRow::LimitOfSplit(Way way, int32_t prefill,
                                     double rate) const {
  return {Capacity(prefill, way, rate) / workers_,
          static_cast<double>(prefill) / workers_};
}

GridRow::Served GridRow::MostOf(const Load& load, Way way) const {
  Served most;
  const int32_t step = std::max(1, workers_ / kFewWorkers);
  const int32_t first = way == Way::kDisaggregated ? step : 0;
  const int32_t end = way == Way::kAggregated ? 1 : workers_;
  for (int32_t prefill = first; prefill < end; prefill += step) {
    const double goodput = Goodput(load, prefill, way);
    if (goodput > most.goodput) most = {goodput, prefill};
  }
  return most;
}

void GridRow::PrintCheck(const Limits& limits) const {
  std::printf("%-22s %6d  attainment at 0.97 and 1.05 of the limit:", mix_.name,
              workers_);
  for (int way = 0; way < kWays; ++way) {
    const Limit& limit = limits[way];
    const int32_t prefill = PrefillOf(limit);
    std::printf("  %.3f %.3f",
                Attainment(0.97 * limit.rate * workers_, prefill,
                           static_cast<Way>(way)),
                Attainment(1.05 * limit.rate * workers_, prefill,
                           static_cast<Way>(way)));
    std::fflush(stdout);
  }
  std::printf("\n");
}

void GridRow::Print(const Limits& limits,
                    const std::vector<double>& factors) const {
  const double better = std::max(limits[0].rate, limits[1].rate);
  std::printf("%-22s %6d  capacity %10.1f %10.1f (%d) %10.1f (%d) %6.2f\n",
              mix_.name, workers_, limits[0].rate * workers_,
              limits[1].rate * workers_, PrefillOf(limits[1]),
              limits[2].rate * workers_, PrefillOf(limits[2]),
              limits[2].rate / better);
  PrintBound(better);
  for (const double factor : factors) {
    const double rate = factor * better * workers_;
    const Load load = LoadOf(rate);
    double goodput[kWays];
    for (int way = 0; way < kWays; ++way) {
      goodput[way] =
          Goodput(load, PrefillOf(limits[way]), static_cast<Way>(way));
    }
    std::printf("%29s  %8.1f %10.1f %10.1f %4s %10.1f %4s %6.2f\n", "", rate,
                goodput[0], goodput[1], "", goodput[2], "",
                goodput[2] / std::max({goodput[0], goodput[1], 1e-9}));
    std::fflush(stdout);
  }
}

void GridRow::PrintBound(double better) const {
  const SimulationOptions options = Cluster(mix_, 0, workers_);
  const CapacityBound bound = BoundOf(MakeLoad(mix_, 100, 100).requests,
                                      options.profile, options.targets);
  std::printf(
      "%29s  no way carries more than %.1f (%.2f), or %.1f (%.2f) when the "
      "tenth that misses is the one that costs the most\n",
      "", bound.fair * workers_, bound.fair / better, bound.any * workers_,
      bound.any / better);
}

int32_t GridRow::PrefillOf(const Limit& limit) const {
  return static_cast<int32_t>(std::lround(limit.prefill * workers_));
}

Load GridRow::LoadOf(double rate) const {
  // Some thousand requests, and answers that end; less time for many workers.
  const double seconds =
      std::max(4000 / rate, std::clamp(15'000 / rate, 30.0, 60.0));
  return MakeLoad(mix_, rate, std::max(seconds, least_seconds_));
}

SimulationOptions GridRow::Options(int32_t prefill, Way way) const {
  SimulationOptions options = Cluster(mix_, prefill, workers_ - prefill);
  options.split_share = split_share_;
  if (split_share_ > 0) options.prefix_cache_tokens = 0;
  options.allow_local_prefill = way != Way::kDisaggregated;
  options.dual_workers = way == Way::kDual;
  return options;
}

SimulationResult GridRow::Run(const Load& load, int32_t prefill,
                              Way way) const {
  return Simulate(Options(prefill, way), load.requests, load.window);
}

double GridRow::Goodput(const Load& load, int32_t prefill, Way way) const {
  return Run(load, prefill, way).goodput;
}

bool GridRow::Carries(double rate, int32_t prefill, Way way) const {
  const Load load = LoadOf(rate);
  SimulationOptions options = Options(prefill, way);
  options.most_misses = static_cast<int64_t>(load.requests.size() / 10);
  return !Simulate(options, load.requests, load.window).stopped_early;
}

double GridRow::Attainment(double rate, int32_t prefill, Way way) const {
  const Load load = LoadOf(rate);
  return Goodput(load, prefill, way) * absl::ToDoubleSeconds(load.window) /
         static_cast<double>(load.requests.size());
}

double GridRow::Capacity(int32_t prefill, Way way, double rate) const {
  double fits = 0;
  double fails = 0;
  for (int trial = 0; trial < 12; ++trial) {
    (Carries(rate, prefill, way) ? fits : fails) = rate;
    if (fails == 0) {
      rate *= 1.5;
    } else {
      rate = fits == 0 ? rate / 2 : (fits + fails) / 2;
    }
    if (fits > 0 && fails > 0 && fails / fits < 1.01) break;
  }
  return fits;
}

GridRow::Limit GridRow::LimitOf(Way way, double rate,
                                std::initializer_list<int32_t> splits) const {
  if (way == Way::kAggregated) return LimitOfSplit(way, 0, rate);
  const auto prefill_of = [&](int32_t sixteenths) {
    return workers_ * sixteenths / 16;
  };
  int32_t best = 0;
  double most = 0;
  const auto take = [&](int32_t sixteenths) {
    const int32_t prefill = prefill_of(sixteenths);
    if (prefill < (way == Way::kDefault ? 0 : 1) || prefill >= workers_) {
      return;
    }
    // Only what carries more than the best so far is worth a search.
    if (most > 0 && !Carries(1.01 * most, prefill, way)) return;
    const double carries =
        Capacity(prefill, way, most > 0 ? 1.05 * most : rate);
    if (carries <= most) return;
    most = carries;
    best = sixteenths;
  };
  for (const int32_t sixteenths : splits) take(sixteenths);
  const int32_t coarse = best;
  take(coarse - 1);
  take(coarse + 1);
  return {most / workers_, static_cast<double>(prefill_of(best)) / workers_};
}

}  // namespace baton::bench
