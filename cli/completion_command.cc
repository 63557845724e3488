// `baton completion`: prints what a shell needs to complete its words.
#include <cstdio>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cli/command.h"
#include "common/command_line/completion.h"

namespace baton::cli {
namespace {

int RunCompletion(const CLI::App& app, const std::string& shell) {
  std::printf("%s", command_line::CompletionFor(app, shell).c_str());
  return std::fflush(stdout) == 0 ? kExitOk : kExitFailed;
}

}  // namespace

void AddCompletionCommand(CLI::App* app, const std::string& program,
                          Command* chosen) {
  auto shell = std::make_shared<std::string>();
  CLI::App* completion = app->add_subcommand(
      "completion", "Print what a shell needs to complete these words");
  completion->add_option("SHELL", *shell, "bash, zsh or fish")
      ->check(CLI::IsMember(std::vector<std::string>(
          std::begin(command_line::kShells), std::end(command_line::kShells))))
      ->required();
  completion->footer(absl::StrCat(
      "Examples:\n  source <(", program, " completion bash)\n  ", program,
      " completion fish > ~/.config/fish/completions/baton.fish\n"));
  completion->callback([app, shell, chosen] {
    *chosen = [app, shell] { return RunCompletion(*app, *shell); };
  });
}

}  // namespace baton::cli
