// The `baton` command line. Each subcommand is in its own file.
#include <cstdio>
#include <string>

#include "absl/strings/str_cat.h"
#include "cli/command.h"
#include "common/rpc/grpc_program.h"

int main(int argc, char** argv) {
  const baton::rpc::GrpcProgram grpc;
  const std::string program = argc > 0 ? argv[0] : "baton";
  CLI::App app(
      "Baton serves large language models on two pools of workers: prefill "
      "workers read the\nprompt, decode workers write the answer, and the KV "
      "cache goes from one to the other.");
  app.name("baton");
  app.set_version_flag("--version", absl::StrCat("baton ", BATON_VERSION));
  app.require_subcommand(1);
  app.footer(absl::StrCat(
      "Start here:\n  ", program,
      " up                             # in one terminal\n  ", program,
      " generate \"Once upon a time\"    # in another\n\n  ", program,
      " SUBCOMMAND --help tells more.\n"));
  baton::cli::Command chosen;
  baton::cli::AddUpCommand(&app, program, &chosen);
  baton::cli::AddGenerateCommand(&app, program, &chosen);
  baton::cli::AddChatCommand(&app, program, &chosen);
  baton::cli::AddModelCommand(&app, program, &chosen);
  baton::cli::AddBatchCommand(&app, program, &chosen);
  baton::cli::AddBenchCommand(&app, program, &chosen);
  baton::cli::AddCompletionCommand(&app, program, &chosen);
  baton::cli::AddDoctorCommand(&app, program, &chosen);
  baton::cli::AddExplainCommand(&app, program, &chosen);
  baton::cli::AddKeyCommand(&app, program, &chosen);
  baton::cli::AddPerplexityCommand(&app, program, &chosen);
  baton::cli::AddPlanCommand(&app, program, &chosen);
  baton::cli::AddQuantizeCommand(&app, program, &chosen);
  baton::cli::AddSynthCommand(&app, program, &chosen);
  if (argc < 2) {
    std::printf("%s", app.help().c_str());
    return baton::cli::kExitOk;
  }
  // CLI11 would only say that a subcommand is missing.
  const std::string first = argv[1];
  if (first.rfind('-', 0) != 0 &&
      app.get_subcommands([&](const CLI::App* subcommand) {
           return subcommand->get_name() == first;
         })
          .empty()) {
    std::fprintf(stderr, "baton: there is no subcommand '%s'; see %s --help\n",
                 first.c_str(), program.c_str());
    return baton::cli::kExitBadFlags;
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    // CLI11's own codes for mistakes are above 100.
    return app.exit(error) == 0 ? baton::cli::kExitOk
                                : baton::cli::kExitBadFlags;
  }
  return chosen();
}
