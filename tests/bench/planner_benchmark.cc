// How fast clusters are simulated, and what ways of serving come to at cluster
// scale:
//
//   planner_benchmark hour [WORKERS [SECONDS [REQUESTS_PER_SECOND]]]
//   planner_benchmark grid [MIX] [WORKERS ...]
//   planner_benchmark halves [MIX] [WORKERS ...]
//   planner_benchmark split [WORKERS]
//   planner_benchmark prefix TRACE [WORKERS ...]
//
// `hour`: one run of so many workers, with the time and the memory that it
// takes. `grid`: for each number of workers and mix of lengths, the load that
// each way of serving just carries is searched, with the split that carries the
// most, and what they make of 0.7 to 1.3 times that of the better one of
// "aggregated" and "disaggregated". Besides, what no way could carry more than
// (planner_benchmark_bound.h). MIX: of this one only ("long prompts").
// `halves`: the same with half of the workers of each kind, whatever the mix.
// `split`: what clusters carry when a share of each prompt is computed on the
// decode worker (docs/adr/0032-no-split-placement.md); of so many workers, or
// all that are there.
// `prefix`: how much of a trace's prompts is found in prefix caches
// (planner_benchmark_prefix.h).
#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <initializer_list>
#include <map>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "planner/cluster_simulation.h"
#include "planner/plan_search.h"
#include "tests/bench/planner_benchmark_bound.h"
#include "tests/bench/planner_benchmark_mixes.h"
#include "tests/bench/planner_benchmark_prefix.h"

namespace baton::bench {
namespace {

using planner::Load;
using planner::SimulationOptions;
using planner::SimulationResult;

double MegabytesUsed() {
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) / 1024;
}

int RunHour(int32_t workers, double seconds, double rate) {
  const Mix& mix = *FindMix("mooncake conversation");
  const Load load = MakeLoad(mix, rate, seconds);
  const SimulationOptions options = Cluster(mix, workers / 2, workers / 2);
  const absl::Time start = absl::Now();
  const SimulationResult result = Simulate(options, load.requests, load.window);
  const double took = absl::ToDoubleSeconds(absl::Now() - start);
  std::printf(
      "%s lengths: %d workers, %.0f s, %zu requests (%.0f per second)\n"
      "simulated in %.1f s: %.0f times as fast as it would be, %.1f us each "
      "request, %.2f M steps per second, %.0f MB\n"
      "attainment %.1f%%, busy: prefill %.0f%%, decode %.0f%%; %lld prompts "
      "on decode workers; TTFT p50 %.0f ms, TPOT p50 %.1f ms\n",
      mix.name, workers, seconds, load.requests.size(), rate, took,
      result.total_seconds / took,
      1e6 * took / static_cast<double>(load.requests.size()),
      1e-6 * static_cast<double>(result.prefill.steps + result.decode.steps) /
          took,
      MegabytesUsed(), 100 * result.attainment, 100 * result.prefill.busy,
      100 * result.decode.busy, static_cast<long long>(result.local_prefills),
      result.ttft.p50, result.tpot.p50);
  return 0;
}

// Ways of serving a mix with a number of workers.
class GridRow final {
 public:
  enum class Way { kAggregated, kDisaggregated, kDefault };
  static constexpr int kWays = 3;
  // Per worker: what a way just carries, and its share of prefill workers then.
  struct Limit {
    double rate = 0;
    double prefill = 0;
  };
  using Limits = std::array<Limit, kWays>;

  GridRow(const Mix& mix, int32_t workers, double split_share = 0)
      : mix_(mix), workers_(workers), split_share_(split_share) {}

  // By search. Of many workers, only about the splits that are the best of few.
  Limits Find() const {
    Limits limits;
    if (workers_ > kFewWorkers) {
      const Limits of_few = GridRow(mix_, kFewWorkers).Find();
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

  Limit LimitOfSplit(Way way, int32_t prefill, double rate) const {
    return {Capacity(prefill, way, rate) / workers_,
            static_cast<double>(prefill) / workers_};
  }

  // Whether each way carries a little less than these, and a little more: what
  // they were found with was another number of workers.
  void PrintCheck(const Limits& limits) const {
    std::printf("%-22s %6d  attainment at 0.97 and 1.05 of the limit:",
                mix_.name, workers_);
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

  void Print(const Limits& limits, const std::vector<double>& factors) const {
    const double better = std::max(limits[0].rate, limits[1].rate);
    std::printf("%-22s %6d  capacity %10.1f %10.1f (%d) %10.1f (%d) %6.2f\n",
                mix_.name, workers_, limits[0].rate * workers_,
                limits[1].rate * workers_, PrefillOf(limits[1]),
                limits[2].rate * workers_, PrefillOf(limits[2]),
                limits[2].rate / better);
    PrintBound(better);
    for (const double factor : factors) {
      const double rate = factor * better * workers_;
      const Load load = MakeLoad(mix_, rate, Seconds(rate));
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

  // Beside what the better of two ways carries, per worker.
  void PrintBound(double better) const {
    const SimulationOptions options = Cluster(mix_, 0, workers_);
    const CapacityBound bound = BoundOf(MakeLoad(mix_, 100, 100).requests,
                                        options.profile, options.targets);
    std::printf(
        "%29s  no way carries more than %.1f (%.2f), or %.1f (%.2f) when the "
        "tenth that misses is the one that costs the most\n",
        "", bound.fair * workers_, bound.fair / better, bound.any * workers_,
        bound.any / better);
  }

 private:
  static constexpr int32_t kFewWorkers = 16;

  int32_t PrefillOf(const Limit& limit) const {
    return static_cast<int32_t>(std::lround(limit.prefill * workers_));
  }

  // Some thousand requests, and answers that end; less time for many workers.
  static double Seconds(double rate) {
    return std::max(4000 / rate, std::clamp(15'000 / rate, 30.0, 60.0));
  }

  SimulationOptions Options(int32_t prefill, Way way) const {
    SimulationOptions options = Cluster(mix_, prefill, workers_ - prefill);
    options.split_share = split_share_;
    if (split_share_ > 0) options.prefix_cache_tokens = 0;
    options.allow_local_prefill = way != Way::kDisaggregated;
    return options;
  }

  double Goodput(const Load& load, int32_t prefill, Way way) const {
    return Simulate(Options(prefill, way), load.requests, load.window).goodput;
  }

  bool Carries(double rate, int32_t prefill, Way way) const {
    const Load load = MakeLoad(mix_, rate, Seconds(rate));
    SimulationOptions options = Options(prefill, way);
    options.most_misses = static_cast<int64_t>(load.requests.size() / 10);
    return !Simulate(options, load.requests, load.window).stopped_early;
  }

  double Attainment(double rate, int32_t prefill, Way way) const {
    const Load load = MakeLoad(mix_, rate, Seconds(rate));
    return Goodput(load, prefill, way) * absl::ToDoubleSeconds(load.window) /
           static_cast<double>(load.requests.size());
  }

  double Capacity(int32_t prefill, Way way, double rate) const {
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

  // The best split of sixteenths, and its limit: of those that are named, and
  // those beside the best one of them.
  Limit LimitOf(Way way, double rate,
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

  const Mix& mix_;
  const int32_t workers_;
  const double split_share_;
};

// All ways with the same split, half of the workers each, which is no good one:
// what comes of mixes that nobody has planned for.
void PrintHalves(const Mix& mix, int32_t workers) {
  const GridRow row(mix, workers);
  const GridRow::Limit aggregated =
      row.LimitOfSplit(GridRow::Way::kAggregated, 0, mix.first_rate * workers);
  const GridRow::Limit disaggregated = row.LimitOfSplit(
      GridRow::Way::kDisaggregated, workers / 2, aggregated.rate * workers);
  const GridRow::Limit both = row.LimitOfSplit(
      GridRow::Way::kDefault, workers / 2, disaggregated.rate * workers);
  row.Print({aggregated, disaggregated, both}, {0.7, 1.0, 1.1, 1.2, 1.3});
}

// Prompts that are computed in two places.
int RunSplit(int32_t workers) {
  constexpr double kShares[] = {0, 0.03, 0.06, 0.1, 0.15, 0.25, 0.4};
  struct Case {
    const Mix& mix;
    int32_t prefill;
    int32_t decode;
  };
  const Mix& azure = *FindMix("azure conversation");
  const Mix& mooncake = *FindMix("mooncake conversation");
  const Mix& prompts = *FindMix("long prompts");
  const Case cases[] = {{prompts, 1, 1},  {mooncake, 1, 1}, {azure, 1, 1},
                        {prompts, 2, 2},  {mooncake, 2, 2}, {azure, 2, 2},
                        {prompts, 14, 2}, {prompts, 13, 3}, {mooncake, 12, 4},
                        {mooncake, 11, 5}};
  std::printf("requests per second with 90 %% within the targets\n%-22s %8s",
              "mix", "workers");
  for (const double share : kShares) std::printf(" %6.0f %%", 100 * share);
  std::printf("\n");
  for (const Case& one : cases) {
    const int32_t count = one.prefill + one.decode;
    if (workers > 0 && workers != count) continue;
    std::printf("%-22s %3d + %2d", one.mix.name, one.prefill, one.decode);
    double rate = one.mix.first_rate * count;
    for (const double share : kShares) {
      const GridRow row(one.mix, count, share);
      rate = row.LimitOfSplit(GridRow::Way::kDefault, one.prefill, rate).rate *
             count;
      std::printf(" %8.2f", rate);
      std::fflush(stdout);
    }
    std::printf("\n");
  }
  return 0;
}

// More workers than that have the limits of so many, which are checked.
constexpr int32_t kMostSearched = 128;

// Of all mixes, or the one of that name.
int RunGrid(const std::string& only, const std::vector<int32_t>& workers,
            bool halves) {
  // Of kMostSearched workers, by mix.
  std::map<const Mix*, GridRow::Limits> of_most;
  std::printf(
      "goodput, requests per second, and the ratio of default to the better of "
      "the others;\nof each way with its own best split (prefill workers); "
      "capacity: with 90 %% within the targets\n%-22s %6s %10s %10s %15s %15s "
      "%6s\n",
      "mix", "all", "offered", "aggregated", "disaggregated", "default",
      "ratio");
  for (const int32_t count : workers) {
    for (const Mix& mix : AllMixes()) {
      if (!only.empty() && only != mix.name) continue;
      if (halves) {
        PrintHalves(mix, count);
        continue;
      }
      const GridRow row(mix, count);
      if (count < kMostSearched) {
        row.Print(row.Find(), {0.7, 1.0, 1.1, 1.2, 1.3});
        continue;
      }
      if (!of_most.contains(&mix)) {
        of_most[&mix] = GridRow(mix, kMostSearched).Find();
      }
      const GridRow::Limits& limits = of_most[&mix];
      if (count == kMostSearched) {
        row.Print(limits, {0.7, 1.0, 1.1, 1.2, 1.3});
        continue;
      }
      row.PrintCheck(limits);
      row.Print(limits, {0.7, 1.0, 1.2});
    }
  }
  return 0;
}

int Main(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "";
  const auto number = [&](int i, double fallback) {
    return argc > i ? std::max(1e-3, std::atof(argv[i])) : fallback;
  };
  if (what == "hour") {
    return RunHour(static_cast<int32_t>(number(2, 1000)), number(3, 3600),
                   number(4, 120));
  }
  if (what == "grid" || what == "halves") {
    int first = 2;
    std::string mix;
    if (argc > 2 && std::atoi(argv[2]) == 0) mix = argv[first++];
    if (!mix.empty() && FindMix(mix) == nullptr) {
      std::fprintf(stderr, "there is no mix '%s'\n", mix.c_str());
      return 2;
    }
    std::vector<int32_t> workers;
    for (int i = first; i < argc; ++i) {
      workers.push_back(static_cast<int32_t>(number(i, 16)));
    }
    return RunGrid(
        mix, workers.empty() ? std::vector<int32_t>{16, 128, 1024} : workers,
        what == "halves");
  }
  if (what == "split") return RunSplit(static_cast<int32_t>(number(2, 0)));
  if (what == "prefix" && argc > 2) {
    std::vector<int32_t> workers;
    for (int i = 3; i < argc; ++i) {
      workers.push_back(static_cast<int32_t>(number(i, 4)));
    }
    return RunPrefix(
        argv[2], Profile(),
        workers.empty() ? std::vector<int32_t>{1, 4, 16} : workers);
  }
  std::fprintf(stderr,
               "planner_benchmark hour [WORKERS [SECONDS [RATE]]]\n"
               "planner_benchmark grid [MIX] [WORKERS ...]\n"
               "planner_benchmark halves [MIX] [WORKERS ...]\n"
               "planner_benchmark split [WORKERS]\n"
               "planner_benchmark prefix TRACE [WORKERS ...]\n");
  return 2;
}

}  // namespace
}  // namespace baton::bench

int main(int argc, char** argv) { return baton::bench::Main(argc, argv); }
