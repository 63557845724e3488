// What a shell needs to complete the words of a command line: written from the
// tree of subcommands and flags itself, so that it cannot go stale.
//
// Pure; any thread.
#pragma once

#include <string>

#include <CLI/CLI.hpp>

namespace baton::command_line {

// A script for bash (4 or later; no package for completion is needed): words
// are subcommands, flags, and the values of flags that have a list of them;
// elsewhere names of files.
std::string BashCompletion(const CLI::App& app);

// The same for zsh, by its own emulation of bash's completion.
std::string ZshCompletion(const CLI::App& app);

// For fish.
std::string FishCompletion(const CLI::App& app);

// The shells' names, and the script for one of them.
inline constexpr const char* kShells[] = {"bash", "zsh", "fish"};
// REQUIRES: shell is one of kShells.
std::string CompletionFor(const CLI::App& app, const std::string& shell);

// The flag --completion SHELL: prints that script, and nothing else is done, as
// with --help. For programs without subcommands, whose other flags are there
// already or come later.
void AddCompletionFlag(CLI::App* app);

}  // namespace baton::command_line
