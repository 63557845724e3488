// The flags of `baton chat`.
#include <unistd.h>

#include <cstdio>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "cli/chat.h"
#include "cli/command.h"
#include "cli/router_connection.h"
#include "cli/sampling_flags.h"
#include "common/process/process.h"

namespace baton::cli {

void AddChatCommand(CLI::App* app, const std::string& program,
                    Command* chosen) {
  auto options = std::make_shared<ChatOptions>();
  CLI::App* chat = app->add_subcommand(
      "chat", "Talk to the model, a line at a time; it knows what was said");
  AddAddressFlag(chat, &options->router.address);
  chat->add_option("--model", options->model,
                   "Name of the model; default: the one that is served");
  chat->add_option("--system", options->system,
                   "What the model is told before all else");
  chat->add_option("--max-tokens", options->max_tokens,
                   "Most tokens of an answer; default: what the context has "
                   "room for");
  chat->add_option("--timeout", options->timeout_seconds,
                   "Seconds for an answer, default 600")
      ->check(CLI::Range(0.001, 86400.0));
  chat->add_flag("--summary", options->summary,
                 "Where the time went, after each answer");
  AddCredentialFlags(chat, &options->router);
  AddSamplingFlags(chat, &options->sampling);
  chat->footer(absl::StrCat(
      "Answers go to standard output. At a terminal /help lists commands; "
      "elsewhere each line of\nthe input is a message.\nExamples:\n  ",
      program, " chat --system \"You are brief.\"\n  ", program,
      " chat --greedy --max-tokens 100 < questions.txt\n"));
  chat->callback([options, chosen] {
    *chosen = [options] {
      process::SetUpSignals(/*die_with_parent=*/false);
      return RunChat(*options, STDIN_FILENO, stdout, stderr);
    };
  });
}

}  // namespace baton::cli
