// The scripts for shells, run by a real bash (and by zsh and fish where they
// are).
#include "common/command_line/completion.h"

#include <cstdio>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/log.h"
#include "tests/support/scratch_dir.h"

namespace baton::command_line {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

using Words = std::vector<std::string>;

// What a command of the shell prints; its error output is the test's.
std::string OutputOf(const std::string& command) {
  FILE* const pipe = popen(command.c_str(), "r");
  CHECK(pipe != nullptr);
  std::string out;
  char buffer[4096];
  for (size_t n; (n = fread(buffer, 1, sizeof(buffer), pipe)) > 0;) {
    out.append(buffer, n);
  }
  EXPECT_EQ(pclose(pipe), 0) << command;
  return out;
}

bool HasProgram(const std::string& name) {
  return OutputOf(absl::StrCat("command -v ", name, " || true")) != "";
}

class CompletionTest : public testing::Test {
 protected:
  CompletionTest() {
    app_.name("tool");
    app_.add_option("--log,-l", text_, "Where to \"log\"; it's $HOME");
    CLI::App* const run = app_.add_subcommand("run", "Run it");
    run->add_option("--format", text_, "How")
        ->check(CLI::IsMember({"text", "json"}));
    run->add_option("--cache", on_, "Whether")
        ->transform(CLI::CheckedTransformer(
            std::map<std::string, bool>{{"on", true}, {"off", false}}));
    run->add_option("--count", count_, "How many")->check(CLI::Range(1, 9));
    run->add_flag("--fast", on_, "Hurry");
    run->add_option("FILE", text_, "Input");
    CLI::App* const deep = app_.add_subcommand("bench", "Measure")
                               ->add_subcommand("serve", "A cluster");
    deep->add_option("--rate", count_, "Requests");
  }

  // The words that bash offers for the last one of these.
  Words Complete(const Words& words) {
    const std::string script = scratch_.path() + "/script";
    std::ofstream(script) << BashCompletion(app_);
    Words quoted;
    for (const std::string& word : words) {
      quoted.push_back(absl::StrCat("\"", word, "\""));
    }
    const std::string test = scratch_.path() + "/test";
    std::ofstream(test) << "source " << script << "\nCOMP_WORDS=("
                        << absl::StrJoin(quoted, " ")
                        << ")\nCOMP_CWORD=" << words.size() - 1
                        << "\n_tool\nprintf '%s\\n' \"${COMPREPLY[@]}\"\n";
    return absl::StrSplit(OutputOf("bash -u " + test), '\n', absl::SkipEmpty());
  }

  CLI::App app_{"A tool"};
  std::string text_;
  bool on_ = false;
  int count_ = 0;
  test::ScratchDir scratch_;
};

TEST_F(CompletionTest, SubcommandsAndTheirs) {
  EXPECT_THAT(Complete({"tool", ""}), UnorderedElementsAre("run", "bench"));
  EXPECT_THAT(Complete({"tool", "b"}), UnorderedElementsAre("bench"));
  EXPECT_THAT(Complete({"tool", "bench", ""}), UnorderedElementsAre("serve"));
  // After a flag of the program and its value.
  EXPECT_THAT(Complete({"tool", "--log", "x", "r"}),
              UnorderedElementsAre("run"));
}

TEST_F(CompletionTest, FlagsOfTheCommandAtHand) {
  EXPECT_THAT(Complete({"tool", "-"}),
              UnorderedElementsAre("--help", "-h", "--log", "-l"));
  EXPECT_THAT(Complete({"tool", "run", "--f"}),
              UnorderedElementsAre("--format", "--fast"));
  EXPECT_THAT(Complete({"tool", "bench", "serve", "--r"}),
              UnorderedElementsAre("--rate"));
}

TEST_F(CompletionTest, ValuesOfAFlag) {
  EXPECT_THAT(Complete({"tool", "run", "--format", ""}),
              UnorderedElementsAre("text", "json"));
  EXPECT_THAT(Complete({"tool", "run", "--format", "j"}),
              UnorderedElementsAre("json"));
  EXPECT_THAT(Complete({"tool", "run", "--cache", ""}),
              UnorderedElementsAre("on", "off"));
  // Any: bash goes on with files.
  EXPECT_THAT(Complete({"tool", "run", "--count", ""}), IsEmpty());
  // A flag without a value takes none.
  EXPECT_THAT(Complete({"tool", "run", "--fast", "--c"}),
              UnorderedElementsAre("--cache", "--count"));
}

TEST_F(CompletionTest, FishHasTheSameWords) {
  const std::string script = FishCompletion(app_);
  EXPECT_THAT(script,
              HasSubstr("complete -c tool -n '__fish_use_subcommand' -a run "
                        "-d 'Run it'\n"));
  EXPECT_THAT(script, HasSubstr(" -l format -r -f -a "));
  EXPECT_THAT(script,
              HasSubstr(" -l log -s l -r -d 'Where to \"log\"; it\\'s $HOME'"));
  EXPECT_THAT(script,
              HasSubstr("-n '__fish_seen_subcommand_from bench; and "
                        "__fish_seen_subcommand_from serve' -l rate -r"));
  if (!HasProgram("fish")) GTEST_SKIP() << "fish is not installed";
  const std::string file = scratch_.path() + "/tool.fish";
  std::ofstream(file) << script;
  OutputOf("fish --no-execute " + file);
}

TEST_F(CompletionTest, ZshReadsTheScript) {
  const std::string script = ZshCompletion(app_);
  EXPECT_EQ(script.rfind("#compdef tool\n", 0), 0u);
  EXPECT_THAT(script, HasSubstr("bashcompinit"));
  if (!HasProgram("zsh")) GTEST_SKIP() << "zsh is not installed";
  const std::string file = scratch_.path() + "/_tool";
  std::ofstream(file) << script;
  OutputOf("zsh -n " + file);
}

// A program that will not run without a flag.
class CompletionFlagTest : public testing::Test {
 protected:
  CompletionFlagTest() {
    AddCompletionFlag(&app_);
    app_.add_option("--model", model_, "What to run")->required();
  }

  // What it prints, and its exit status.
  std::pair<std::string, int> Run(const std::string& words) {
    std::ostringstream out;
    try {
      app_.parse(words);
    } catch (const CLI::ParseError& error) {
      const int status = app_.exit(error, out, out);
      return {out.str(), status};
    }
    return {out.str(), -1};
  }

  CLI::App app_{"A program", "pro-gram"};
  std::string model_;
};

TEST_F(CompletionFlagTest, PrintsTheScriptAndNothingElseIsDone) {
  const auto [script, status] = Run("--completion bash");
  EXPECT_EQ(status, 0);
  EXPECT_EQ(script, BashCompletion(app_));
  EXPECT_THAT(script, HasSubstr("complete -o default -F _pro_gram pro-gram\n"));
  EXPECT_THAT(script, HasSubstr("--model"));
}

TEST_F(CompletionFlagTest, KnowsTheShells) {
  for (const std::string shell : {"bash", "zsh", "fish"}) {
    EXPECT_EQ(Run("--completion " + shell),
              std::pair(CompletionFor(app_, shell), 0));
  }
  const auto [error, status] = Run("--completion tcsh");
  EXPECT_NE(status, 0);
  EXPECT_THAT(error, HasSubstr("--completion"));
}

TEST_F(CompletionFlagTest, WithoutItTheProgramRuns) {
  EXPECT_EQ(Run("--model x").second, -1);
  EXPECT_EQ(model_, "x");
}

}  // namespace
}  // namespace baton::command_line
