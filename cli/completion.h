// What a shell needs to complete the words of a command line: written from the
// tree of subcommands and flags itself, so that it cannot go stale.
//
// Pure; any thread.
#pragma once

#include <string>

#include <CLI/CLI.hpp>

namespace baton::cli {

// A script for bash (4 or later; no package for completion is needed): words
// are subcommands, flags, and the values of flags that have a list of them;
// elsewhere names of files.
std::string BashCompletion(const CLI::App& app);

// The same for zsh, by its own emulation of bash's completion.
std::string ZshCompletion(const CLI::App& app);

// For fish.
std::string FishCompletion(const CLI::App& app);

}  // namespace baton::cli
