// `baton key`: makes an API key, and the line by which a router knows it.
#include <cstdio>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "cli/command.h"
#include "router/access/key_file.h"

namespace baton::cli {
namespace {

int RunKey(router::KeyEntry entry) {
  const std::string key = router::NewKey();
  entry.hash = router::HashKey(key);
  // The key alone on standard output, and the line after it: `baton key NAME |
  // tail -1 >> FILE` adds it.
  std::fprintf(stderr,
               "The key, which is shown only now, for the client; then its "
               "line for the file of --api-keys:\n");
  std::printf("%s\n%s\n", key.c_str(), router::FormatKeyLine(entry).c_str());
  return std::fflush(stdout) == 0 ? kExitOk : kExitFailed;
}

// What is wrong with the entry; empty: nothing.
std::string Check(const router::KeyEntry& entry) {
  return std::string(
      router::ParseKeyFile(router::FormatKeyLine(entry), "the line")
          .status()
          .message());
}

}  // namespace

void AddKeyCommand(CLI::App* app, const std::string& program, Command* chosen) {
  auto entry = std::make_shared<router::KeyEntry>();
  CLI::App* key = app->add_subcommand(
      "key", "Make an API key for `baton-router --api-keys`");
  router::KeyLimits& limits = entry->limits;
  key->add_option("NAME", entry->name,
                  "Whose key: in logs, metrics and messages")
      ->required();
  key->add_option("--max-concurrent", limits.max_concurrent,
                  "Most requests at a time")
      ->check(CLI::PositiveNumber);
  key->add_option("--requests-per-minute", limits.requests_per_minute,
                  "Most requests in a minute")
      ->check(CLI::PositiveNumber);
  key->add_option("--tokens-per-minute", limits.tokens_per_minute,
                  "Most prompt and output tokens in a minute")
      ->check(CLI::PositiveNumber);
  key->add_option("--max-tokens", limits.max_tokens,
                  "Most output tokens of one request")
      ->check(CLI::PositiveNumber);
  key->add_option("--weight", limits.weight,
                  "Its share when requests have to wait; others have 1")
      ->check(CLI::Range(1, router::kMaxKeyWeight));
  router::KeyRights& rights = entry->rights;
  key->add_option("--max-priority", rights.max_priority,
                  "Higher priorities of its requests are cut to it")
      ->check(CLI::Range(-router::kMaxKeyPriority, router::kMaxKeyPriority));
  key->add_option_function<std::string>(
         "--class",
         [entry](const std::string&) { entry->rights.batch_only = true; },
         "batch: all of its requests are, whatever they say")
      ->check(CLI::IsMember({"batch"}));
  key->add_option("--models", rights.models,
                  "Names of the model and of adapters that are there for it; "
                  "default: all")
      ->delimiter(',');
  key->add_option("--tenant", entry->tenant,
                  "Whose key it is: keys of one tenant share cached prefixes "
                  "of prompts; default: NAME");
  key->footer(absl::StrCat(
      "Only a hash of the key is kept: who loses it needs a new one.\n"
      "Example:\n  ",
      program, " key alice --max-concurrent 8\n  ", program,
      " generate --api-key sk-baton-... \"Once upon a time\"\n"));
  key->callback([entry, chosen] {
    const std::string wrong = Check(*entry);
    if (!wrong.empty()) throw CLI::ValidationError("baton key", wrong);
    *chosen = [entry] { return RunKey(*entry); };
  });
}

}  // namespace baton::cli
