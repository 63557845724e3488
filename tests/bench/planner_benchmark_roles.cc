#include "tests/bench/planner_benchmark_roles.h"

#include <algorithm>
#include <cstdio>

#include "absl/time/time.h"
#include "planner/simulation_result.h"
#include "tests/bench/planner_benchmark_grid.h"
#include "tests/bench/planner_benchmark_mixes.h"

namespace baton::bench {
namespace {

using Way = GridRow::Way;

// A worker changes within tens of seconds; a mix stays for minutes at least.
constexpr double kLeastSeconds = 240;

void PrintMix(const Mix& mix, int32_t workers) {
  const GridRow row(mix, workers, /*split_share=*/0, kLeastSeconds);
  const GridRow::Limits best = row.Find();
  const double rate = best[2].rate * workers;
  const int32_t half = workers / 2;
  const GridRow::Limit halves = row.LimitOfSplit(Way::kDefault, half, rate);
  const GridRow::Limit dual = row.LimitOfSplit(Way::kDual, half, rate);
  std::printf(
      "| %s | capacity | %.4g | %.4g (%d) | %.4g (%d) | %.4g | %.4g | %.2f | "
      "%.2f | |\n",
      mix.name, best[0].rate * workers, best[1].rate * workers,
      row.PrefillOf(best[1]), rate, row.PrefillOf(best[2]),
      halves.rate * workers, dual.rate * workers, dual.rate / best[2].rate,
      dual.rate / std::max({best[0].rate, best[1].rate, 1e-9}));
  const double better = std::max(best[0].rate, best[1].rate) * workers;
  for (const double factor : {0.7, 1.0, 1.2}) {
    const planner::Load load = row.LoadOf(factor * better);
    const auto goodput = [&](const GridRow::Limit& limit, Way way) {
      return row.Run(load, row.PrefillOf(limit), way).goodput;
    };
    const double one_pool = goodput(best[0], Way::kAggregated);
    const double two_pools = goodput(best[1], Way::kDisaggregated);
    const double fixed = goodput(best[2], Way::kDefault);
    const planner::SimulationResult of_dual = row.Run(load, half, Way::kDual);
    std::printf(
        "| | %.4g | %.4g | %.4g | %.4g | %.4g | %.4g | %.2f | %.2f | %lld |\n",
        factor * better, one_pool, two_pools, fixed,
        goodput(halves, Way::kDefault), of_dual.goodput,
        of_dual.goodput / std::max(fixed, 1e-9),
        of_dual.goodput / std::max({one_pool, two_pools, 1e-9}),
        static_cast<long long>(of_dual.role_changes));
    std::fflush(stdout);
  }
}

// One row for the capacity, and one for each of three loads.
void PrintTargets(const Mix& mix, int32_t workers) {
  const GridRow row(mix, workers, /*split_share=*/0, kLeastSeconds);
  const GridRow::Limits best = row.Find();
  const int32_t half = workers / 2;
  const double better = std::max({best[0].rate, best[1].rate, 1e-9});
  const GridRow::Limit dual =
      row.LimitOfSplit(Way::kDual, half, better * workers);
  std::printf(
      "| %s, %g s, %g ms | capacity | %.4g | %.4g (%d) | %.4g (%d) | %.4g | "
      "%.2f | | %.2f |\n",
      mix.name, absl::ToDoubleSeconds(mix.ttft),
      absl::ToDoubleMilliseconds(mix.itl), best[0].rate * workers,
      best[1].rate * workers, row.PrefillOf(best[1]), best[2].rate * workers,
      row.PrefillOf(best[2]), dual.rate * workers, best[2].rate / better,
      dual.rate / better);
  for (const double factor : {0.7, 1.0, 1.2}) {
    const planner::Load load = row.LoadOf(factor * better * workers);
    const auto goodput = [&](size_t way) {
      return row.Run(load, row.PrefillOf(best[way]), static_cast<Way>(way))
          .goodput;
    };
    const double one_pool = goodput(0);
    const double of_splits =
        goodput(2) / std::max({one_pool, goodput(1), 1e-9});
    const GridRow::Served two_pools = row.MostOf(load, Way::kDisaggregated);
    const GridRow::Served fixed = row.MostOf(load, Way::kDefault);
    const double changing = row.Run(load, half, Way::kDual).goodput;
    const double most = std::max({one_pool, two_pools.goodput, 1e-9});
    std::printf(
        "| | %.4g | %.4g | %.4g (%d) | %.4g (%d) | %.4g | %.2f | %.2f | %.2f "
        "|\n",
        factor * better * workers, one_pool, two_pools.goodput,
        two_pools.prefill, fixed.goodput, fixed.prefill, changing,
        fixed.goodput / most, of_splits, changing / most);
    std::fflush(stdout);
  }
}

}  // namespace

int RunRoles(const std::string& only, const std::vector<int32_t>& workers) {
  for (const int32_t count : workers) {
    std::printf(
        "%d workers: goodput, requests per second; the splits that carry the "
        "most (prefill workers), half of each kind, and workers that begin so "
        "and change\n\n"
        "| lengths | offered | aggregated | disaggregated | default | default, "
        "halves | dual | dual / default | dual / better of one pool and two | "
        "role changes |\n"
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n",
        count);
    for (const Mix& mix : AllMixes()) {
      if (only.empty() || only == mix.name) PrintMix(mix, count);
    }
    std::printf("\n");
  }
  return 0;
}

int RunTargets(const std::string& only, const std::vector<int32_t>& workers) {
  struct Factors {
    double ttft;
    double itl;
  };
  constexpr Factors kFactors[] = {{0.5, 1}, {2, 1}, {1, 0.6}, {1, 2}};
  for (const int32_t count : workers) {
    std::printf(
        "%d workers: goodput, requests per second; the splits that serve the "
        "most of each load (prefill workers); ratios to the better of one pool "
        "and two: of the default, with those splits, and with the ones that "
        "carry the most, and of workers that begin as half of each kind and "
        "change\n\n"
        "| lengths, TTFT, TPOT | offered | aggregated | disaggregated | "
        "default | dual | default / better | with the splits of the capacity | "
        "dual / better |\n"
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |\n",
        count);
    for (const Mix& mix : AllMixes()) {
      if (!only.empty() && only != mix.name) continue;
      for (const Factors factors : kFactors) {
        Mix other = mix;
        other.ttft *= factors.ttft;
        other.itl *= factors.itl;
        PrintTargets(other, count);
      }
    }
    std::printf("\n");
  }
  return 0;
}

}  // namespace baton::bench
