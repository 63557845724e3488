// `baton completion`: prints what a shell needs to complete its words.
#include <cstdio>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "cli/command.h"
#include "cli/completion.h"

namespace baton::cli {
namespace {

int RunCompletion(const CLI::App& app, const std::string& shell) {
  const std::string script = shell == "bash"  ? BashCompletion(app)
                             : shell == "zsh" ? ZshCompletion(app)
                                              : FishCompletion(app);
  std::printf("%s", script.c_str());
  return std::fflush(stdout) == 0 ? kExitOk : kExitFailed;
}

}  // namespace

void AddCompletionCommand(CLI::App* app, const std::string& program,
                          Command* chosen) {
  auto shell = std::make_shared<std::string>();
  CLI::App* completion = app->add_subcommand(
      "completion", "Print what a shell needs to complete these words");
  completion->add_option("SHELL", *shell, "bash, zsh or fish")
      ->check(CLI::IsMember({"bash", "zsh", "fish"}))
      ->required();
  completion->footer(absl::StrCat(
      "Examples:\n  source <(", program, " completion bash)\n  ", program,
      " completion fish > ~/.config/fish/completions/baton.fish\n"));
  completion->callback([app, shell, chosen] {
    *chosen = [app, shell] { return RunCompletion(*app, *shell); };
  });
}

}  // namespace baton::cli
