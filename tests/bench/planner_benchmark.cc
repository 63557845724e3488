// How fast clusters are simulated, and what ways of serving come to at cluster
// scale:
//
//   planner_benchmark hour [WORKERS [SECONDS [REQUESTS_PER_SECOND]]]
//   planner_benchmark grid [WORKERS ...]
//   planner_benchmark prefix TRACE [WORKERS ...]
//
// `hour`: one run of so many workers, with the time and the memory that it
// takes. `grid`: for each number of workers and mix of lengths, the load that
// the better of "aggregated" and "disaggregated" just carries is searched, and
// what all ways of serving make of 0.7, 1 and 1.3 times that is printed.
// `prefix`: how much of a trace's prompts is found in prefix caches
// (planner_benchmark_prefix.h).
#include <sys/resource.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "planner/cluster_simulation.h"
#include "planner/plan_search.h"
#include "planner/roofline.h"
#include "tests/bench/planner_benchmark_prefix.h"
#include "workload/workload.h"

namespace baton::bench {
namespace {

using planner::Load;
using planner::SimulationOptions;
using planner::SimulationResult;

struct Mix {
  const char* name;
  workload::LengthRange prompt;
  workload::LengthRange output;
  absl::Duration ttft;
  absl::Duration itl;
  // Requests per second and worker, where the search begins.
  double first_rate;
};

// Means about those of the traces that they are called by (Azure 2023, Mooncake
// 2025); made up, so that any number of workers can be given their load.
constexpr Mix kMixes[] = {
    {"short chat",
     {50, 450},
     {50, 350},
     absl::Seconds(1),
     absl::Milliseconds(50),
     4},
    {"azure conversation",
     {200, 2100},
     {20, 400},
     absl::Seconds(2),
     absl::Milliseconds(50),
     2},
    {"mooncake conversation",
     {2000, 22000},
     {50, 640},
     absl::Seconds(15),
     absl::Milliseconds(60),
     0.2},
    {"long prompts",
     {8000, 24000},
     {10, 100},
     absl::Seconds(15),
     absl::Milliseconds(60),
     0.2},
};

// About Llama 3.3 70B with weights of a byte on one H200.
planner::ClusterProfile Profile() {
  const planner::ModelGeometry model = {.name = "70B",
                                        .layer_parameters = 68.5e9,
                                        .head_parameters = 1.05e9,
                                        .weight_bytes = 70e9,
                                        .kv_bytes_per_token = 327680,
                                        .num_layers = 80,
                                        .q_size = 8192,
                                        .max_context = 131072};
  const auto profile = planner::RooflineProfile(
      *planner::FindGpu("H200"), model, planner::RooflineOptions());
  if (!profile.ok()) std::abort();
  return *profile;
}

Load MakeLoad(const Mix& mix, double rate, double seconds) {
  workload::SyntheticOptions options;
  options.arrivals.rate = rate;
  options.prompt = mix.prompt;
  options.output = mix.output;
  options.duration = absl::Seconds(seconds);
  return {workload::MakeSynthetic(options), options.duration};
}

SimulationOptions Cluster(const Mix& mix, int32_t prefill, int32_t decode) {
  SimulationOptions options;
  options.profile = Profile();
  options.num_prefill = prefill;
  options.num_decode = decode;
  options.targets = {mix.ttft, mix.itl};
  options.timeout_seconds = 120;
  return options;
}

double MegabytesUsed() {
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) / 1024;
}

int RunHour(int32_t workers, double seconds, double rate) {
  const Mix& mix = kMixes[2];
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

// Ways of serving with a number of workers, each with its best split.
class GridRow final {
 public:
  GridRow(const Mix& mix, int32_t workers) : mix_(mix), workers_(workers) {}

  void Print() {
    // The best split depends little on the load: found once, near the limit.
    const double first = mix_.first_rate * workers_;
    disaggregated_ = BestPrefill(first, false);
    const double limit = std::max(Capacity(0, true, first),
                                  Capacity(disaggregated_, false, first));
    disaggregated_ = BestPrefill(limit, false);
    both_ = BestPrefill(limit, true);
    for (const double factor : {0.7, 1.0, 1.3}) {
      const double rate = factor * limit;
      const Load load = MakeLoad(mix_, rate, Seconds(rate));
      const double aggregated = Goodput(load, 0, true);
      const double disaggregated = Goodput(load, disaggregated_, false);
      const double same = Goodput(load, disaggregated_, true);
      const double best = Goodput(load, both_, true);
      std::printf(
          "%-22s %6d %9.1f %10.1f %10.1f (%d) %10.1f %10.1f (%d) %6.2f %6.2f\n",
          mix_.name, workers_, rate, aggregated, disaggregated, disaggregated_,
          same, best, both_, same / std::max({aggregated, disaggregated, 1e-9}),
          best / std::max({aggregated, disaggregated, 1e-9}));
      std::fflush(stdout);
    }
  }

 private:
  // Some thousand requests; long enough for answers to end.
  static double Seconds(double rate) { return std::max(60.0, 4000 / rate); }

  double Goodput(const Load& load, int32_t prefill, bool local) const {
    SimulationOptions options = Cluster(mix_, prefill, workers_ - prefill);
    options.allow_local_prefill = local;
    return Simulate(options, load.requests, load.window).goodput;
  }

  double Attainment(double rate, int32_t prefill, bool local) const {
    const Load load = MakeLoad(mix_, rate, Seconds(rate));
    return Goodput(load, prefill, local) * absl::ToDoubleSeconds(load.window) /
           static_cast<double>(load.requests.size());
  }

  double Capacity(int32_t prefill, bool local, double rate) const {
    double fits = 0;
    double fails = 0;
    for (int trial = 0; trial < 9; ++trial) {
      (Attainment(rate, prefill, local) >= 0.9 ? fits : fails) = rate;
      if (fails == 0) {
        rate *= 2;
      } else {
        rate = fits == 0 ? rate / 2 : (fits + fails) / 2;
      }
    }
    return fits;
  }

  int32_t BestPrefill(double rate, bool local) const {
    int32_t best = 1;
    double most = -1;
    for (int32_t eighth = 1; eighth < 8; ++eighth) {
      const int32_t prefill = std::max(1, workers_ * eighth / 8);
      const double attainment = Attainment(rate, prefill, local);
      if (attainment <= most) continue;
      most = attainment;
      best = prefill;
    }
    return best;
  }

  const Mix& mix_;
  const int32_t workers_;
  int32_t disaggregated_ = 1;
  int32_t both_ = 1;
};

int RunGrid(const std::vector<int32_t>& workers) {
  std::printf(
      "goodput, requests per second; (prefill workers); the last two: default "
      "with the\nsame split as disaggregated, and with its own, to the better "
      "of the others\n%-22s %6s %9s %10s %14s %10s %14s %6s %6s\n",
      "mix", "all", "offered", "aggregated", "disaggregated", "default",
      "its split", "ratio", "ratio");
  for (const int32_t count : workers) {
    for (const Mix& mix : kMixes) GridRow(mix, count).Print();
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
  if (what == "grid") {
    std::vector<int32_t> workers;
    for (int i = 2; i < argc; ++i) {
      workers.push_back(static_cast<int32_t>(number(i, 16)));
    }
    return RunGrid(workers.empty() ? std::vector<int32_t>{16, 128, 1024}
                                   : workers);
  }
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
               "planner_benchmark grid [WORKERS ...]\n"
               "planner_benchmark prefix TRACE [WORKERS ...]\n");
  return 2;
}

}  // namespace
}  // namespace baton::bench

int main(int argc, char** argv) { return baton::bench::Main(argc, argv); }
