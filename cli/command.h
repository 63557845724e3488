// What a subcommand of `baton` is: flags added to the application, and the work
// that main runs when it was the one chosen.
#pragma once

#include <functional>

#include <CLI/CLI.hpp>

namespace baton::cli {

// Returns the exit code: 0, 1 (it failed; said why on stderr), 2 (a flag is
// wrong), 130 (the user pressed Ctrl-C).
using Command = std::function<int()>;

inline constexpr int kExitOk = 0;
inline constexpr int kExitFailed = 1;
inline constexpr int kExitBadFlags = 2;
inline constexpr int kExitInterrupted = 130;

// Where `baton up` listens, and the others look for it.
inline constexpr char kDefaultAddress[] = "127.0.0.1:8600";

// Each adds one subcommand, whose choice sets *chosen. `program` is how the
// user called this program, for examples that can be copied.
void AddUpCommand(CLI::App* app, const std::string& program, Command* chosen);
void AddGenerateCommand(CLI::App* app, const std::string& program,
                        Command* chosen);
void AddChatCommand(CLI::App* app, const std::string& program, Command* chosen);
void AddBatchCommand(CLI::App* app, const std::string& program,
                     Command* chosen);
void AddModelCommand(CLI::App* app, const std::string& program,
                     Command* chosen);
void AddBenchCommand(CLI::App* app, const std::string& program,
                     Command* chosen);
void AddBenchEngineCommand(CLI::App* bench, const std::string& program,
                           Command* chosen);
void AddBenchServeCommand(CLI::App* bench, const std::string& program,
                          Command* chosen);
void AddCompletionCommand(CLI::App* app, const std::string& program,
                          Command* chosen);
void AddDoctorCommand(CLI::App* app, const std::string& program,
                      Command* chosen);
void AddExplainCommand(CLI::App* app, const std::string& program,
                       Command* chosen);
void AddKeyCommand(CLI::App* app, const std::string& program, Command* chosen);
void AddPlanCommand(CLI::App* app, const std::string& program, Command* chosen);
void AddPlanProfileCommand(CLI::App* plan, const std::string& program,
                           Command* chosen);
void AddPerplexityCommand(CLI::App* app, const std::string& program,
                          Command* chosen);
void AddQuantizeCommand(CLI::App* app, const std::string& program,
                        Command* chosen);
void AddSynthCommand(CLI::App* app, const std::string& program,
                     Command* chosen);

}  // namespace baton::cli
