// simulate [--seed=N] [--count=M] [--log] [--remove-fence=generation|...] runs
// M simulations from seed N on and says what they came to. By hand; the test
// runs fewer.
#include <cstdio>
#include <map>
#include <string>

#include <CLI/CLI.hpp>

#include "common/log.h"
#include "tests/sim/seeds.h"

namespace baton::sim {
namespace {

int Main(int argc, char** argv) {
  using kv_transfer::Fence;
  uint64_t seed = 1;
  uint64_t count = 1;
  Fence fence = Fence::kNone;
  CLI::App app("Simulates whole clusters, each from a seed", "simulate");
  app.add_option("--seed", seed, "the first seed");
  app.add_option("--count", count, "how many seeds");
  app.add_option("--remove-fence", fence, "what the receiver goes without")
      ->transform(CLI::CheckedTransformer(
          std::map<std::string, Fence>{{"generation", Fence::kGeneration},
                                       {"quarantine", Fence::kQuarantine},
                                       {"commit", Fence::kCommitCheck}}));
  bool log = false;
  app.add_flag("--log", log, "let the product's log through");
  CLI11_PARSE(app, argc, argv);
  if (log) {
    InitLogging("simulate");
  } else {
    StayQuiet();
  }
  const SeedsReport report = RunSeeds(seed, count, fence);
  std::printf("%s", report.coverage.Describe().c_str());
  if (report.failed_seed.has_value()) {
    std::printf("%s%s\nreplay: %s\n", report.last_events.c_str(),
                report.violation.c_str(), report.replay.c_str());
    return 1;
  }
  std::printf("%llu seeds hold, digest %016llx\n",
              static_cast<unsigned long long>(report.num_run),
              static_cast<unsigned long long>(report.digest));
  return 0;
}

}  // namespace
}  // namespace baton::sim

int main(int argc, char** argv) { return baton::sim::Main(argc, argv); }
