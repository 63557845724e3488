// The flags of `baton generate`.
#include <cstdio>
#include <iostream>
#include <iterator>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "cli/command.h"
#include "cli/generate.h"
#include "cli/router_connection.h"
#include "cli/sampling_flags.h"
#include "common/process/process.h"

namespace baton::cli {
namespace {

// What one message to the router holds.
constexpr size_t kMaxPromptBytes = 15 << 20;

// PROMPT "-": all of standard input, as it is.
bool ReadPromptFromStdin(std::string* prompt) {
  char buffer[64 << 10];
  prompt->clear();
  size_t n = 0;
  while ((n = std::fread(buffer, 1, sizeof(buffer), stdin)) > 0) {
    prompt->append(buffer, n);
    if (prompt->size() > kMaxPromptBytes) return false;
  }
  return true;
}

void AddOtherFlags(CLI::App* app, GenerateOptions* options) {
  AddAddressFlag(app, &options->router.address);
  app->add_option("--model", options->model,
                  "Name of the model; default: the one that is served");
  app->add_option("--max-tokens", options->max_tokens,
                  "Most output tokens; default: what the context has room for");
  app->add_flag("--ignore-eos", options->ignore_eos,
                "Go on past the model's end-of-text token");
  app->add_option("--timeout", options->timeout_seconds,
                  "Seconds for the whole call, default 600")
      ->check(CLI::Range(0.001, 86400.0));
  app->add_option("--request-id", options->request_id,
                  "A name of your own in the cluster's logs");
  app->add_flag("--echo", options->echo, "Write the prompt before the text");
  app->add_flag("--json", options->json,
                "One JSON object a line and response, with token ids; the last "
                "has usage and timing");
  app->add_flag("--quiet", options->quiet, "No summary at the end");
  AddCredentialFlags(app, &options->router);
}

}  // namespace

void AddGenerateCommand(CLI::App* app, const std::string& program,
                        Command* chosen) {
  auto options = std::make_shared<GenerateOptions>();
  CLI::App* generate = app->add_subcommand(
      "generate", "Continue a prompt; the text comes as it is made");
  CLI::Option* prompt = generate->add_option(
      "prompt", options->prompt, "The prompt; - reads it from standard input");
  CLI::Option* tokens =
      generate
          ->add_option("--tokens", options->tokens,
                       "Token ids in place of PROMPT, such as 1,512,9")
          ->delimiter(',');
  prompt->type_name("PROMPT");
  tokens->type_name("ID,ID,...");
  AddOtherFlags(generate, options.get());
  AddSamplingFlags(generate, &options->sampling);
  AddFormatFlags(generate, &options->format);
  generate->footer(absl::StrCat(
      "The text goes to standard output, a summary of where the time went to "
      "standard error.\nExamples:\n  ",
      program, " generate \"Once upon a time\" --max-tokens 100\n  ", program,
      " generate --greedy --json --tokens 1,35,20\n  ", program,
      " generate - < prompt.txt > story.txt\n  ", program,
      " generate \"The king's name and age:\" --json-schema person.json\n"));
  generate->callback([options, prompt, tokens, chosen] {
    if (prompt->count() == 0 && tokens->count() == 0) {
      throw CLI::RequiredError("PROMPT or --tokens");
    }
    if (prompt->count() > 0 && tokens->count() > 0) {
      throw CLI::ExcludesError("PROMPT", "--tokens");
    }
    *chosen = [options] {
      process::SetUpSignals(/*die_with_parent=*/false);
      if (options->prompt == "-" && !ReadPromptFromStdin(&options->prompt)) {
        std::fprintf(stderr, "baton generate: the prompt is too long\n");
        return kExitFailed;
      }
      return RunGenerate(*options, stdout, stderr);
    };
  });
}

}  // namespace baton::cli
