// handoff_stress [--seconds=S] [--seed=N]
// [--transport=mixed|auto|ucx|tcp|local] runs the real hand-off over the real
// transports between processes that are killed, stopped and started again, and
// checks that nothing is corrupted, leaked or left hanging (stress_run.h). Exit
// status 0: nothing was, and enough happened; 1: not enough happened; 3: a
// violation, which it names.
//
// Tests run it for some seconds; by hand it runs longer.
#include <cstdio>
#include <map>
#include <string>

#include <CLI/CLI.hpp>

#include "common/log.h"
#include "tests/stress/stress_run.h"
#include "tests/stress/stress_worker.h"

namespace baton::stress {
namespace {

using kv_transfer::Fence;

int RunWorker(const std::string& role, const WorkerOptions& options) {
  return (role == "sender" ? MakeStressSender(options)
                           : MakeStressReceiver(options))
      ->Run();
}

int Main(int argc, char** argv) {
  StressOptions run;
  WorkerOptions worker;
  std::string role;
  double seconds = 10;
  uint64_t seed = 1;
  std::string transport = "mixed";
  Fence fence = Fence::kNone;
  bool log = false;
  CLI::App app("Stresses the hand-off between processes", "handoff_stress");
  app.add_option(
         "--seconds", seconds,
         "How long at least; on, for up to 100 s, until enough happened")
      ->check(CLI::PositiveNumber);
  app.add_option("--seed", seed, "What is drawn");
  app.add_option("--transport", transport, "Of the workers")
      ->check(CLI::IsMember({"mixed", "auto", "ucx", "tcp", "local"}));
  app.add_option("--max-open", run.max_open,
                 "Most transfers at once, of each receiver");
  app.add_option("--remove-fence", fence, "What the receivers go without")
      ->transform(CLI::CheckedTransformer(
          std::map<std::string, Fence>{{"quarantine", Fence::kQuarantine}}));
  app.add_flag("--log", log, "Let the workers' logs through");
  // How it starts itself as a worker.
  app.add_option("--role", role)->group("");
  app.add_option("--notes-fd", worker.notes_fd)->group("");
  app.add_option("--incarnation", worker.incarnation)->group("");
  app.add_flag("--late-writes", worker.late_writes)->group("");
  CLI11_PARSE(app, argc, argv);
  InitLogging(role.empty() ? "handoff_stress" : role);
  if (!log) FLAGS_minloglevel = google::GLOG_FATAL;
  if (!role.empty()) {
    worker.transport = transport;
    worker.seed = seed;
    worker.removed_fence = fence;
    return RunWorker(role, worker);
  }
  run.duration = absl::Seconds(seconds);
  run.seed = seed;
  run.transport = transport;
  run.removed_fence = fence;
  run.log = log;
  const StressReport report = RunStress(run);
  std::printf("%s\n", report.text.c_str());
  if (!report.covered) std::printf("too little happened to mean anything\n");
  return report.covered ? 0 : 1;
}

}  // namespace
}  // namespace baton::stress

int main(int argc, char** argv) { return baton::stress::Main(argc, argv); }
