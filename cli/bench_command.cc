// `baton bench`: holds the measurements together.
#include "cli/command.h"

namespace baton::cli {

void AddBenchCommand(CLI::App* app, const std::string& program,
                     Command* chosen) {
  CLI::App* bench = app->add_subcommand("bench", "Measure how fast things are");
  bench->require_subcommand(1);
  AddBenchEngineCommand(bench, program, chosen);
  AddBenchServeCommand(bench, program, chosen);
}

}  // namespace baton::cli
