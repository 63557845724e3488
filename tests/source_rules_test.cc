// The rules of the house that hold for every file by itself and that a compiler
// does not check: how long it may be, and what our code never does. They are a
// function of a path and a text, which is tested on made-up ones; the last test
// applies it to the whole tree.
#include <algorithm>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "tests/source_tree.h"

namespace baton {
namespace {

using source_tree::ReadTree;
using source_tree::SourceFile;
using source_tree::Strings;
using source_tree::TopFolder;

constexpr int kMaxLines = 500;

// What is written in code: without // comments.
std::string WithoutComments(const std::string& text) {
  Strings lines;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    const size_t comment = line.find("//");
    // "http://" is no comment.
    const bool is_url = comment != absl::string_view::npos && comment > 0 &&
                        line[comment - 1] == ':';
    lines.emplace_back(is_url ? line : line.substr(0, comment));
  }
  return absl::StrJoin(lines, "\n");
}

// Whether `word` stands in `text` and is not the end of a longer name.
bool HasWord(const std::string& text, const std::string& word) {
  for (size_t at = text.find(word); at != std::string::npos;
       at = text.find(word, at + 1)) {
    const bool longer =
        at > 0 && (absl::ascii_isalnum(text[at - 1]) || text[at - 1] == '_');
    if (!longer) return true;
  }
  return false;
}

const Strings& SleepWords() {
  static const auto* words =
      new Strings{"sleep_for(", "sleep_until(", "SleepFor(",
                  "sleep(",     "usleep(",      "nanosleep("};
  return *words;
}
const Strings& PrintWords() {
  static const auto* words =
      new Strings{"std::cout", "std::cerr", "printf(", "puts("};
  return *words;
}
const Strings& UnfinishedWords() {
  static const auto* words = new Strings{"TODO", "FIXME"};
  return *words;
}

constexpr char kJsonHeader[] = "nlohmann/json";

// Violations of the rules in one source file.
Strings CheckSource(const std::string& path, const std::string& text) {
  const std::string folder = TopFolder(path);
  const bool is_header = absl::EndsWith(path, ".h");
  const std::string code = WithoutComments(text);
  Strings found;
  const auto add = [&](absl::string_view what) {
    found.push_back(absl::StrCat(path, ": ", what));
  };
  const auto lines = std::count(text.begin(), text.end(), '\n');
  if (lines > kMaxLines) {
    add(absl::StrCat("has ", lines, " lines; ", kMaxLines, " are enough"));
  }
  for (const std::string& word : SleepWords()) {
    if (HasWord(code, word)) add(absl::StrCat("waits by ", word, ")"));
  }
  if (folder != "tests" && folder != "cli" && folder != "examples") {
    for (const std::string& word : PrintWords()) {
      if (HasWord(code, word)) add(absl::StrCat("prints by ", word));
    }
  }
  for (const std::string& word : UnfinishedWords()) {
    if (HasWord(text, word)) add(absl::StrCat("is unfinished: ", word));
  }
  if (HasWord(code, "using namespace")) add("has a using directive");
  // The last of them links no library of ours.
  if (path != "common/json.h" && path != "tests/tools/bundle_check.cc" &&
      absl::StrContains(code, kJsonHeader)) {
    add("includes nlohmann's JSON, not common/json.h");
  }
  if (is_header && !absl::StrContains(text, "\n#pragma once\n")) {
    add("has no #pragma once");
  }
  if (is_header && !absl::StartsWith(text, "//")) {
    add("does not open with what it is");
  }
  return found;
}

TEST(SourceRulesTest, FindsEachKindOfViolation) {
  const std::string good = "// A thing.\n#pragma once\n";
  EXPECT_THAT(CheckSource("engine/x.h", good), testing::IsEmpty());
  EXPECT_THAT(CheckSource("engine/x.h", "#pragma once\n"), testing::SizeIs(2));
  EXPECT_THAT(CheckSource("engine/x.h", "// A thing.\n"), testing::SizeIs(1));
  const std::string long_file(kMaxLines + 1, '\n');
  EXPECT_THAT(CheckSource("engine/x.cc", long_file), testing::SizeIs(1));
  EXPECT_THAT(CheckSource("tests/x.cc", long_file), testing::SizeIs(1));
  for (const std::string& word : SleepWords()) {
    EXPECT_THAT(CheckSource("tests/x.cc", "  absl::" + word + "1);\n"),
                testing::SizeIs(1))
        << word;
    EXPECT_THAT(CheckSource("tests/x.cc", "// " + word + "1)\n"),
                testing::IsEmpty());
    EXPECT_THAT(CheckSource("tests/x.cc", "my_" + word + "1);\n"),
                testing::IsEmpty());
  }
  for (const std::string& word : PrintWords()) {
    EXPECT_THAT(CheckSource("engine/x.cc", "  " + word + " x;\n"),
                testing::SizeIs(1))
        << word;
    EXPECT_THAT(CheckSource("cli/x.cc", "  " + word + " x;\n"),
                testing::IsEmpty());
  }
  // A program says on stderr why it did not start.
  EXPECT_THAT(CheckSource("engine/x.cc", "  std::fprintf(stderr, x);\n"),
              testing::IsEmpty());
  for (const std::string& word : UnfinishedWords()) {
    EXPECT_THAT(CheckSource("engine/x.cc", "// " + word + ": later\n"),
                testing::SizeIs(1));
  }
  for (const auto& [path, found] :
       {std::pair("engine/x.cc", 1), std::pair("common/json.h", 0)}) {
    EXPECT_THAT(
        CheckSource(path, "// A.\n#pragma once\n#include <nlohmann/json.hpp>"),
        testing::SizeIs(static_cast<size_t>(found)));
  }
  EXPECT_THAT(CheckSource("engine/x.cc", "using namespace std;\n"),
              testing::SizeIs(1));
}

TEST(TreeTest, KeepsTheOtherRules) {
  Strings found;
  for (const SourceFile& file : ReadTree()) {
    if (absl::EndsWith(file.path, "CMakeLists.txt")) continue;
    // Holds what it looks for.
    if (file.path == "tests/source_rules_test.cc") continue;
    const Strings here = CheckSource(file.path, file.text);
    found.insert(found.end(), here.begin(), here.end());
  }
  EXPECT_TRUE(found.empty()) << absl::StrJoin(found, "\n");
}

}  // namespace
}  // namespace baton
