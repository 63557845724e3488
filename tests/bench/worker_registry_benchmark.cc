// What the router's registry takes of a turn, in a cluster where each of 300
// prefill workers is paired with each of 700 decode workers, or a tenth of
// that.
//
//   Turn     what every turn of the loop asks, with nothing to report
//   Report   a worker's load report, and such a turn
//   Place    what a placement changes: charges, attempts, their ends
//   PairBreaks  a pair that is refused and then confirmed
#include <string>
#include <utility>
#include <vector>

#include <benchmark/benchmark.h>

#include "common/log.h"
#include "router/worker_registry.h"
#include "tests/support/fake_worker.h"

namespace baton::router {
namespace {

using scheduling::WorkerId;
using scheduling::WorkerRole;

class Cluster final {
 public:
  explicit Cluster(int workers) : num_prefill_(workers * 3 / 10) {
    model_.architecture = "LlamaForCausalLM";
    model_.vocab_size = 2048;
    model_.num_layers = 6;
    model_.max_context = 512;
    for (int i = 0; i < workers; ++i) {
      const bool prefill = i < num_prefill_;
      registry_.Add(prefill ? WorkerRole::kPrefill : WorkerRole::kDecode,
                    "w:" + std::to_string(i));
      hellos_.push_back(test::FakeWorker::Hello(
          prefill ? v1::WORKER_ROLE_PREFILL : v1::WORKER_ROLE_DECODE,
          "w" + std::to_string(i)));
      registry_.Connected(i, hellos_.back(), now_);
    }
    registry_.DuePairs(now_);
    for (int p = 0; p < num_prefill_; ++p) {
      for (int d = num_prefill_; d < workers; ++d) Report(p, d, true);
    }
  }

  void Report(int prefill, int decode, bool paired) {
    v1::PairReport report;
    report.set_decode_incarnation(hellos_[decode].incarnation());
    report.set_paired(paired);
    report.set_bandwidth_bytes(1e9);
    registry_.PairReported(prefill, report, now_);
  }

  void Turn() {
    now_ += absl::Microseconds(100);
    benchmark::DoNotOptimize(registry_.DuePairs(now_));
    benchmark::DoNotOptimize(registry_.NumBreakersOpen(now_));
    benchmark::DoNotOptimize(registry_.NextDue(now_));
    benchmark::DoNotOptimize(registry_.CouldPlace());
  }

  WorkerRegistry& registry() { return registry_; }
  absl::Time now() const { return now_; }
  int num_prefill() const { return num_prefill_; }
  int size() const { return static_cast<int>(hellos_.size()); }
  WorkerId IdOf(int index) const { return registry_.workers()[index].id; }

 private:
  const int num_prefill_;
  absl::Time now_ = absl::UnixEpoch() + absl::Seconds(100);
  ServedModel model_;
  std::vector<v1::WorkerHello> hellos_;
  WorkerRegistry registry_{model_, WorkerRegistry::Options(), now_};
};

// Built once for each size: 210,000 pairs take a while.
Cluster& ClusterOf(int64_t workers) {
  static auto* const small = new Cluster(100);
  if (workers == 100) return *small;
  static auto* const large = new Cluster(1000);
  return *large;
}

void Turn(benchmark::State& state) {
  Cluster& cluster = ClusterOf(state.range(0));
  for (auto _ : state) cluster.Turn();
}

void Report(benchmark::State& state) {
  Cluster& cluster = ClusterOf(state.range(0));
  v1::LoadReport load;
  load.set_running(3);
  load.set_free_blocks(500);
  int worker = 0;
  for (auto _ : state) {
    load.set_steps(load.steps() + 1);
    cluster.registry().Reported(worker, load, cluster.now());
    worker = (worker + 1) % cluster.size();
    cluster.Turn();
  }
}

void Place(benchmark::State& state) {
  Cluster& cluster = ClusterOf(state.range(0));
  WorkerRegistry& registry = cluster.registry();
  int p = 0;
  int d = cluster.num_prefill();
  for (auto _ : state) {
    const WorkerId prefill = cluster.IdOf(p);
    const WorkerId decode = cluster.IdOf(d);
    registry.NextRound();
    registry.PlacedDecode(decode, 10);
    const uint64_t report = registry.PlacedPrefill(prefill, 100);
    registry.AttemptSent(prefill, decode, cluster.now());
    registry.EndedPrefill(prefill, 100, report);
    registry.LegSucceeded(prefill, cluster.now());
    registry.TransferSucceeded(prefill, decode, cluster.now());
    registry.LegSucceeded(decode, cluster.now());
    registry.EndedDecode(decode, 10);
    p = (p + 1) % cluster.num_prefill();
    if (++d == cluster.size()) d = cluster.num_prefill();
  }
}

void PairBreaks(benchmark::State& state) {
  Cluster& cluster = ClusterOf(state.range(0));
  int d = cluster.num_prefill();
  for (auto _ : state) {
    cluster.Report(0, d, false);
    cluster.Report(0, d, true);
    if (++d == cluster.size()) d = cluster.num_prefill();
  }
}

BENCHMARK(Turn)->Arg(100)->Arg(1000)->Unit(benchmark::kMicrosecond);
BENCHMARK(Report)->Arg(100)->Arg(1000)->Unit(benchmark::kMicrosecond);
BENCHMARK(Place)->Arg(100)->Arg(1000)->Unit(benchmark::kMicrosecond);
BENCHMARK(PairBreaks)->Arg(100)->Arg(1000)->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace baton::router

int main(int argc, char** argv) {
  FLAGS_minloglevel = google::GLOG_FATAL;  // each pair would be a line
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
