// How long a placement takes, by policy and by the number of workers: three of
// ten are prefill workers, each paired with each decode worker.
//
//   placement_benchmark [--benchmark_filter=cost-model/...]
//
// Place/POLICY/WORKERS/CACHED: one decision; with CACHED, each worker has the
// beginning of the prompt, one of twenty most of it. Decide also weighs the
// candidates, as the router does for `baton explain`. Both count a placement as
// the router's registry does, so that the next one finds another cluster. Full:
// no decode worker has room, which a router under overload is told again and
// again. p50 and p99 are of single decisions, by the clock's own resolution.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <benchmark/benchmark.h>

#include "scheduling/placement_policies.h"
#include "tests/scheduling/placement_cluster.h"

namespace baton::scheduling {
namespace {

constexpr size_t kCandidates = 64;  // as router::PlacementLog keeps

struct Setting {
  ClusterSnapshot cluster;
  PlacementRequest request;
  std::vector<CachedPrompt> cached;

  WorkerSnapshot* Find(WorkerId id) {
    // Ids count up from 1 in the order of the workers.
    return &cluster.workers[static_cast<uint64_t>(id) - 1];
  }
};

Setting MakeSetting(int workers, bool cached) {
  test::Dice dice(17);
  Setting setting;
  const int num_prefill = workers * 3 / 10;
  setting.cluster = test::RandomCluster(
      {.num_prefill = num_prefill, .num_decode = workers - num_prefill}, &dice);
  setting.request = test::RequestOf(1500, 200);
  if (cached) {
    for (const WorkerSnapshot& worker : setting.cluster.workers) {
      setting.cached.push_back({worker.id, dice.OneIn(20) ? 1200 : 200});
    }
  }
  return setting;
}

double Quantile(std::vector<float>* seconds, double q) {
  const auto at =
      static_cast<size_t>(q * static_cast<double>(seconds->size() - 1));
  std::nth_element(seconds->begin(),
                   seconds->begin() + static_cast<ptrdiff_t>(at),
                   seconds->end());
  return (*seconds)[at];
}

void Report(benchmark::State& state, std::vector<float>* seconds) {
  if (seconds->empty()) return;
  state.SetItemsProcessed(state.iterations());
  state.counters["p50_us"] = 1e6 * Quantile(seconds, 0.5);
  state.counters["p99_us"] = 1e6 * Quantile(seconds, 0.99);
}

void RunFull(benchmark::State& state, const PlacementPolicy& policy) {
  Setting setting =
      MakeSetting(static_cast<int>(state.range(0)), state.range(1) != 0);
  setting.request.cached = setting.cached;
  for (WorkerSnapshot& worker : setting.cluster.workers) {
    if (worker.role == WorkerRole::kDecode) worker.free_blocks = 0;
  }
  std::vector<float> seconds;
  for (auto _ : state) {
    const auto start = std::chrono::steady_clock::now();
    const PlacementVerdict verdict =
        policy.Place(setting.cluster, setting.request);
    const std::chrono::duration<float> took =
        std::chrono::steady_clock::now() - start;
    seconds.push_back(took.count());
    if (verdict.kind != PlacementVerdict::Kind::kNone) {
      state.SkipWithError("there was room");
      break;
    }
  }
  Report(state, &seconds);
}

void Run(benchmark::State& state, const PlacementPolicy& policy, bool weigh) {
  Setting setting =
      MakeSetting(static_cast<int>(state.range(0)), state.range(1) != 0);
  setting.request.cached = setting.cached;
  std::vector<float> seconds;
  std::vector<PlacementVerdict> placed;  // the last ones
  size_t oldest = 0;
  for (auto _ : state) {
    const auto start = std::chrono::steady_clock::now();
    const PlacementVerdict verdict =
        policy.Place(setting.cluster, setting.request);
    if (weigh) {
      benchmark::DoNotOptimize(
          policy.Weigh(setting.cluster, setting.request, verdict, kCandidates));
    }
    const std::chrono::duration<float> took =
        std::chrono::steady_clock::now() - start;
    seconds.push_back(took.count());
    ++setting.cluster.round;
    if (verdict.kind == PlacementVerdict::Kind::kNone) {
      state.SkipWithError("nothing could be placed");
      break;
    }
    const auto count = [&](const PlacementVerdict& v, int by) {
      setting.Find(v.decode)->placed_sequences += by;
      setting.Find(v.decode)->placed_blocks += 110 * by;
      setting.Find(v.prefill != kNoWorker ? v.prefill : v.decode)
          ->placed_tokens += 1500 * by;
    };
    count(verdict, 1);
    placed.push_back(verdict);
    // As many run as there are workers.
    if (placed.size() - oldest > setting.cluster.workers.size()) {
      count(placed[oldest++], -1);
    }
  }
  Report(state, &seconds);
}

void Register() {
  for (const std::string& name : PlacementPolicyNames()) {
    static std::vector<std::unique_ptr<const PlacementPolicy>> policies;
    policies.push_back(*MakePlacementPolicy(name));
    const PlacementPolicy& policy = *policies.back();
    for (const bool weigh : {false, true}) {
      const std::string title = (weigh ? "Decide/" : "Place/") + name;
      benchmark::RegisterBenchmark(title.c_str(),
                                   [&policy, weigh](benchmark::State& state) {
                                     Run(state, policy, weigh);
                                   })
          ->ArgNames({"workers", "cached"})
          ->ArgsProduct({{10, 100, 1000}, {0, 1}})
          ->MinTime(0.3);
    }
    benchmark::RegisterBenchmark(
        ("Full/" + name).c_str(),
        [&policy](benchmark::State& state) { RunFull(state, policy); })
        ->ArgNames({"workers", "cached"})
        ->ArgsProduct({{10, 100, 1000}, {0, 1}})
        ->MinTime(0.3);
  }
}

}  // namespace
}  // namespace baton::scheduling

int main(int argc, char** argv) {
  baton::scheduling::Register();
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
