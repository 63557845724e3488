// Libraries list what they use (DEPS of baton_library): whole builds for tests
// join libraries, so that there a forgotten one is linked all the same
// (cmake/BatonBuild.cmake). The rules are functions of files, and are tested on
// made-up ones; the last test applies them to the whole tree.
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "tests/source_tree.h"

namespace baton::library_deps_test {
namespace {

using source_tree::ReadTree;
using source_tree::SourceFile;
using source_tree::Strings;
using testing::ElementsAre;
using testing::IsEmpty;

struct Library {
  std::set<std::string> sources;  // from the root
  std::set<std::string> deps;     // names of ours
};
// By name; calls of the same name (one for each case) are one.
using Libraries = std::map<std::string, Library>;

// `text` in `folder`, without what climbs out of it.
std::string PathIn(absl::string_view folder, absl::string_view text) {
  while (absl::ConsumePrefix(&text, "../")) {
    folder = folder.substr(0, folder.rfind('/'));
  }
  return absl::StrCat(folder, "/", text);
}

void AddLibraries(const SourceFile& file, Libraries* libraries) {
  const absl::string_view folder =
      absl::StripSuffix(file.path, "/CMakeLists.txt");
  const std::string kCall = "baton_library(";
  for (size_t at = file.text.find(kCall); at != std::string::npos;
       at = file.text.find(kCall, at + 1)) {
    const size_t begin = at + kCall.size();
    const std::string call =
        file.text.substr(begin, file.text.find(')', begin) - begin);
    std::string name;
    absl::string_view section;
    for (absl::string_view word :
         absl::StrSplit(call, absl::ByAnyChar(" \n"), absl::SkipEmpty())) {
      if (word == "NAME" || word == "SOURCES" || word == "DEPS" ||
          word == "ALONE") {
        section = word;
      } else if (section == "NAME") {
        name = std::string(word);
      } else if (section == "SOURCES") {
        (*libraries)[name].sources.insert(PathIn(folder, word));
      } else if (absl::ConsumePrefix(&word, "baton::") ||
                 absl::ConsumePrefix(&word, "baton_")) {
        (*libraries)[name].deps.insert(std::string(word));
      }
    }
  }
}

// Whose types alone may be used: backends have the factory's options, and the
// factory has them.
constexpr absl::string_view kTypesAlone = "engine/engine_factory.h";
// A library that no call of baton_library makes, and one that it has.
constexpr absl::string_view kOther = "engine_cuda";
constexpr absl::string_view kOfOther = "engine_cuda_host";

// All that `name` depends on, in the end.
std::set<std::string> AllDeps(const Libraries& libraries,
                              const std::string& name) {
  std::set<std::string> all;
  Strings open = {name};
  while (!open.empty()) {
    const std::string next = open.back();
    open.pop_back();
    if (next == kOther) all.insert(std::string(kOfOther));
    const auto found = libraries.find(next);
    if (found == libraries.end()) continue;
    for (const std::string& dep : found->second.deps) {
      if (all.insert(dep).second) open.push_back(dep);
    }
  }
  return all;
}

// Files of libraries that include a header whose .cc is another library's,
// which theirs does not depend on.
Strings CheckDeps(const std::vector<SourceFile>& files) {
  Libraries libraries;
  for (const SourceFile& file : files) {
    if (absl::EndsWith(file.path, "/CMakeLists.txt")) {
      AddLibraries(file, &libraries);
    }
  }
  std::map<std::string, Strings> owners;  // of a .cc
  for (const auto& [name, library] : libraries) {
    for (const std::string& source : library.sources) {
      owners[source].push_back(name);
    }
  }
  std::map<std::string, const std::string*> texts;
  for (const SourceFile& file : files) texts[file.path] = &file.text;
  Strings found;
  for (const auto& [name, library] : libraries) {
    const std::set<std::string> deps = AllDeps(libraries, name);
    for (const std::string& source : library.sources) {
      const std::string header =
          absl::StrCat(absl::StripSuffix(source, ".cc"), ".h");
      for (const std::string& path : {source, header}) {
        const auto text = texts.find(path);
        if (text == texts.end()) continue;
        for (absl::string_view line : absl::StrSplit(*text->second, '\n')) {
          if (!absl::ConsumePrefix(&line, "#include \"")) continue;
          const absl::string_view included = line.substr(0, line.find('"'));
          const auto owner = owners.find(
              absl::StrCat(absl::StripSuffix(included, ".h"), ".cc"));
          if (owner == owners.end() || included == kTypesAlone) continue;
          bool listed = false;
          for (const std::string& one : owner->second) {
            listed = listed || one == name || deps.count(one) > 0;
          }
          if (listed) continue;
          found.push_back(absl::StrCat(path, " includes ", included,
                                       ": DEPS of ", name,
                                       " lack baton::", owner->second.front()));
        }
      }
    }
  }
  return found;
}

TEST(LibraryDepsTest, FindsWhatIsNotListed) {
  const SourceFile wheels = {
      "wheels/CMakeLists.txt",
      "baton_library(\n  NAME wheels\n  SOURCES wheel.cc)\n"
      "baton_library(NAME tyres SOURCES rubber/tyre.cc ../axle.cc)"};
  const SourceFile car = {"car/CMakeLists.txt",
                          "baton_library(ALONE NAME car SOURCES car.cc\n"
                          "              DEPS absl::strings baton::chassis)"};
  const SourceFile chassis = {
      "chassis/CMakeLists.txt",
      "baton_library(NAME chassis SOURCES c.cc DEPS baton_wheels)"};
  const SourceFile source = {"car/car.cc",
                             "#include \"wheels/wheel.h\"\n"
                             "#include \"wheels/no_source.h\"\n"
                             "#include <vector>\n"};
  EXPECT_THAT(CheckDeps({wheels, car, chassis, source}), IsEmpty());
  const SourceFile header = {"car/car.h",
                             "#include \"wheels/rubber/tyre.h\"\n"};
  EXPECT_THAT(
      CheckDeps({wheels, car, chassis, source, header}),
      ElementsAre("car/car.h includes wheels/rubber/tyre.h: DEPS of car "
                  "lack baton::tyres"));
}

TEST(LibraryDepsTest, TheTreeListsAll) {
  const std::vector<SourceFile> files = ReadTree();
  Libraries libraries;
  for (const SourceFile& file : files) {
    if (absl::EndsWith(file.path, "/CMakeLists.txt")) {
      AddLibraries(file, &libraries);
    }
  }
  ASSERT_GT(libraries.size(), 50u) << "the calls were not found";
  EXPECT_THAT(CheckDeps(files), IsEmpty());
}

}  // namespace
}  // namespace baton::library_deps_test
