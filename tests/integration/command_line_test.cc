// What each program says of itself: --help, --version, and the words that a
// shell completes.
#include <cstdlib>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "tests/integration/cluster.h"
#include "tests/support/scratch_dir.h"

namespace baton::test {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::string HelpOf(const std::string& program, Flags command = {}) {
  command.push_back("--help");
  const RunResult result = RunProgram(program, command);
  EXPECT_TRUE(result.exit.clean()) << program << ": " << result.err;
  EXPECT_THAT(result.err, IsEmpty()) << program;
  return result.out;
}

// The words at the beginning of lines below "Subcommands:".
Flags SubcommandsIn(const std::string& help) {
  Flags found;
  bool below = false;
  for (absl::string_view line : absl::StrSplit(help, '\n')) {
    if (!absl::StartsWith(line, " ")) {
      below = absl::StartsWithIgnoreCase(line, "subcommands:");
      continue;
    }
    if (!below || !absl::StartsWith(line, "  ") || line.size() < 3 ||
        line[2] == ' ') {
      continue;
    }
    const absl::string_view rest = line.substr(2);
    found.emplace_back(rest.substr(0, rest.find(' ')));
  }
  return found;
}

// Each flag says what it is for: a line with a flag alone goes on below.
void CheckFlags(const std::string& name, const std::string& help) {
  const std::vector<std::string> lines = absl::StrSplit(help, '\n');
  int flags = 0;
  for (size_t i = 0; i < lines.size(); ++i) {
    if (!absl::StartsWith(lines[i], "  -")) continue;
    ++flags;
    // Texts begin in column 30, on the next line where the flag is longer.
    const bool here = lines[i].size() > 30 && lines[i][29] == ' ';
    const bool below =
        i + 1 < lines.size() && absl::StartsWith(lines[i + 1], "          ");
    EXPECT_TRUE(here || below) << name << ": " << lines[i];
  }
  EXPECT_GT(flags, 0) << name;
}

TEST(CommandLineTest, EachProgramTellsOfEachFlag) {
  for (const char* program :
       {"baton-router", "baton-prefill", "baton-decode", "baton-worker"}) {
    const std::string help = HelpOf(program);
    EXPECT_THAT(help, HasSubstr("--model")) << program;
    EXPECT_THAT(help, HasSubstr("--metrics-compat")) << program;
    CheckFlags(program, help);
    const RunResult version = RunProgram(program, {"--version"});
    EXPECT_TRUE(version.exit.clean()) << version.err;
    EXPECT_EQ(version.out.rfind(absl::StrCat(program, " 0."), 0), 0u)
        << version.out;
  }
  EXPECT_THAT(HelpOf("baton-router"), HasSubstr("--otlp-endpoint"));
}

void CheckCommand(const Flags& command, std::set<std::string>* all) {
  const std::string name = absl::StrCat("baton ", absl::StrJoin(command, " "));
  const std::string help = HelpOf("baton", command);
  CheckFlags(name, help);
  for (const std::string& sub : SubcommandsIn(help)) {
    Flags deeper = command;
    deeper.push_back(sub);
    all->insert(absl::StrCat(" ", absl::StrJoin(deeper, " ")));
    CheckCommand(deeper, all);
  }
}

TEST(CommandLineTest, EachSubcommandHasHelpAndIsCompleted) {
  std::set<std::string> commands;
  CheckCommand({}, &commands);
  EXPECT_GT(commands.size(), 10u);
  EXPECT_EQ(commands.count(" bench serve"), 1u);
  const RunResult script = RunProgram("baton", {"completion", "bash"});
  ASSERT_TRUE(script.exit.clean()) << script.err;
  for (const std::string& command : commands) {
    EXPECT_THAT(script.out, HasSubstr(absl::StrCat("\"", command, "\")")));
  }
  const ScratchDir scratch;
  const std::string file = scratch.path() + "/completion";
  std::ofstream(file) << script.out;
  EXPECT_EQ(std::system(absl::StrCat("bash -n ", file).c_str()), 0);
}

TEST(CommandLineTest, AnUnknownShellIsNamed) {
  const RunResult result = RunProgram("baton", {"completion", "ksh"});
  EXPECT_EQ(result.exit.Describe(), "exit status 2");
  EXPECT_THAT(result.err, HasSubstr("ksh"));
  EXPECT_THAT(result.out, IsEmpty());
}

}  // namespace
}  // namespace baton::test
