// How fast clusters are simulated, and what ways of serving come to at cluster
// scale:
//
//   planner_benchmark hour [WORKERS [SECONDS [REQUESTS_PER_SECOND]]]
//   planner_benchmark grid [MIX] [WORKERS ...]
//   planner_benchmark halves [MIX] [WORKERS ...]
//   planner_benchmark targets [MIX] [WORKERS ...]
//   planner_benchmark roles [MIX] [WORKERS ...]
//   planner_benchmark point MIX[:TTFT[:TPOT[:SECONDS]]] PREFILL DECODE WAY
//                           RATE ...
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
// `roles`: the ways of `grid`, and workers that change their roles
// (planner_benchmark_roles.h).
// `targets`: the same with other targets than the mix has: tighter and looser
// ones for the first token, and for those after it; and with the splits that
// serve the most of each load.
// `point`: one cluster, served in one way (aggregated, disaggregated, default
// or dual), at so many requests per second: what becomes of them, and why some
// miss their targets, which are those of the mix times these factors; over so
// many seconds at least.
// `split`: what clusters carry when a share of each prompt is computed on the
// decode worker (docs/adr/0032-no-split-placement.md); of so many workers, or
// all that are there.
// `prefix`: how much of a trace's prompts is found in prefix caches
// (planner_benchmark_prefix.h).
#include <sys/resource.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "planner/cluster_simulation.h"
#include "planner/plan_search.h"
#include "tests/bench/planner_benchmark_grid.h"
#include "tests/bench/planner_benchmark_mixes.h"
#include "tests/bench/planner_benchmark_prefix.h"
#include "tests/bench/planner_benchmark_roles.h"

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

int RunPoints(const Mix& mix, int32_t prefill, int32_t decode,
              const std::string& way, const std::vector<double>& rates,
              double least_seconds) {
  static const std::map<std::string, GridRow::Way> kWays = {
      {"aggregated", GridRow::Way::kAggregated},
      {"disaggregated", GridRow::Way::kDisaggregated},
      {"default", GridRow::Way::kDefault},
      {"dual", GridRow::Way::kDual}};
  const auto found = kWays.find(way);
  if (found == kWays.end()) {
    std::fprintf(stderr, "there is no way '%s'\n", way.c_str());
    return 2;
  }
  const GridRow row(mix, prefill + decode, /*split_share=*/0, least_seconds);
  std::printf("%9s %9s %7s | %7s %7s %7s %7s %7s | %7s %15s %13s %11s\n",
              "rate", "goodput", "met", "offered", "ttft", "tpot", "turned",
              "never", "local", "ttft p50 p90", "tpot p50 p90", "busy P, D");
  for (const double rate : rates) {
    const SimulationResult result =
        row.Run(row.LoadOf(rate), prefill, found->second);
    const auto share = [&result](int64_t count) {
      return 100 * static_cast<double>(count) /
             static_cast<double>(std::max<int64_t>(1, result.offered));
    };
    std::printf(
        "%9.2f %9.2f %6.1f%% | %7lld %6.1f%% %6.1f%% %6.1f%% %6.1f%% | %6.1f%% "
        "%7.0f %7.0f %6.1f %6.1f %4.0f%% %4.0f%%\n",
        rate, result.goodput, 100 * result.attainment,
        static_cast<long long>(result.offered), share(result.missed_ttft),
        share(result.missed_tpot), share(result.rejected),
        share(result.unfinished), share(result.local_prefills), result.ttft.p50,
        result.ttft.p90, result.tpot.p50, result.tpot.p90,
        100 * result.prefill.busy, 100 * result.decode.busy);
    std::fflush(stdout);
  }
  return 0;
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

// Of all mixes, or the one of that name. `print`: instead, of each mix and
// number of workers; null: none.
int RunGrid(const std::string& only, const std::vector<int32_t>& workers,
            void (*print)(const Mix& mix, int32_t workers)) {
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
      if (print != nullptr) {
        print(mix, count);
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
  static const std::map<std::string, void (*)(const Mix&, int32_t)> kPrints = {
      {"grid", nullptr}, {"halves", PrintHalves}};
  const auto print = kPrints.find(what);
  const bool targets = what == "targets";
  if (print != kPrints.end() || what == "roles" || targets) {
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
    if (what == "roles" || targets) {
      if (workers.empty()) workers = {16};
      return targets ? RunTargets(mix, workers) : RunRoles(mix, workers);
    }
    return RunGrid(
        mix, workers.empty() ? std::vector<int32_t>{16, 128, 1024} : workers,
        print->second);
  }
  if (what == "point" && argc > 6) {
    const std::vector<std::string> parts = absl::StrSplit(argv[2], ':');
    const Mix* found = FindMix(parts[0]);
    if (found == nullptr) {
      std::fprintf(stderr, "there is no mix '%s'\n", parts[0].c_str());
      return 2;
    }
    Mix mix = *found;
    if (parts.size() > 1) mix.ttft *= std::atof(parts[1].c_str());
    if (parts.size() > 2) mix.itl *= std::atof(parts[2].c_str());
    const double seconds = parts.size() > 3 ? std::atof(parts[3].c_str()) : 0;
    std::vector<double> rates;
    for (int i = 6; i < argc; ++i) rates.push_back(number(i, 1));
    return RunPoints(mix, std::max(0, std::atoi(argv[3])),
                     std::max(1, std::atoi(argv[4])), argv[5], rates, seconds);
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
               "planner_benchmark targets [MIX] [WORKERS ...]\n"
               "planner_benchmark roles [MIX] [WORKERS ...]\n"
               "planner_benchmark point MIX[:TTFT[:TPOT[:SECONDS]]] PREFILL "
               "DECODE WAY RATE ...\n"
               "planner_benchmark split [WORKERS]\n"
               "planner_benchmark prefix TRACE [WORKERS ...]\n");
  return 2;
}

}  // namespace
}  // namespace baton::bench

int main(int argc, char** argv) { return baton::bench::Main(argc, argv); }
