#include "tests/sim/seeds.h"

#include <cstdio>
#include <cstdlib>

#include <google/protobuf/stubs/logging.h>

#include "absl/strings/str_cat.h"
#include "common/log.h"
#include "tests/sim/mix.h"
#include "tests/sim/simulation.h"

namespace baton::sim {
namespace {

// What runs, for the last words of the process.
const Simulation* current = nullptr;
uint64_t current_seed = 0;

std::string Replay(uint64_t seed) {
  return absl::StrCat("simulate --seed=", seed, " (or BATON_SIM_SEED=", seed,
                      " sim_test)");
}

[[noreturn]] void SayTheSeedAndAbort() {
  if (current != nullptr) {
    std::fprintf(stderr, "%sCHECK failed in seed %llu: %s\n",
                 current->LastEvents().c_str(),
                 static_cast<unsigned long long>(current_seed),
                 Replay(current_seed).c_str());
  }
  std::abort();
}

}  // namespace

void StayQuiet() {
  FLAGS_minloglevel = google::GLOG_FATAL;
  google::protobuf::SetLogHandler(nullptr);
}

SeedsReport RunSeeds(uint64_t first, uint64_t count,
                     kv_transfer::Fence removed_fence) {
  google::InstallFailureFunction(&SayTheSeedAndAbort);
  SeedsReport report;
  for (uint64_t seed = first; seed < first + count; ++seed) {
    Simulation simulation(seed, removed_fence);
    current = &simulation;
    current_seed = seed;
    const std::optional<std::string> violation = simulation.Run();
    ++report.num_run;
    report.coverage.Add(simulation.coverage());
    report.digest = Mix(report.digest, simulation.digest());
    if (!violation.has_value()) continue;
    report.failed_seed = seed;
    report.violation = *violation;
    report.last_events = simulation.LastEvents();
    report.replay = Replay(seed);
    break;
  }
  current = nullptr;
  return report;
}

}  // namespace baton::sim
