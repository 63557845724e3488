#include "router/console/console_files.h"

#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <regex>
#include <set>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace baton::router {
namespace {

using ::testing::IsNull;
using ::testing::NotNull;

std::filesystem::path Folder() {
  return std::filesystem::path(BATON_SOURCE_DIR) / "router" / "console";
}

std::string ReadFile(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(in), {});
}

// What of the folder is for browsers, by the path where it is served.
std::map<std::string, std::string> FilesOnDisk() {
  const std::set<std::string> extensions = {".html", ".css", ".js", ".svg"};
  std::map<std::string, std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(Folder())) {
    if (extensions.count(entry.path().extension()) == 0) continue;
    const std::string name = entry.path().filename();
    files[name == "index.html" ? "/" : absl::StrCat("/console/", name)] =
        ReadFile(entry.path());
  }
  return files;
}

TEST(ConsoleFilesTest, HoldsEveryFileOfTheFolderByteForByte) {
  const std::map<std::string, std::string> on_disk = FilesOnDisk();
  ASSERT_GT(on_disk.size(), 10u);
  for (const auto& [path, body] : on_disk) {
    const ConsoleFile* file = FindConsoleFile(path);
    ASSERT_THAT(file, NotNull()) << path << " is not in CMakeLists.txt";
    EXPECT_EQ(file->path, path);
    EXPECT_TRUE(file->body == body) << path << " differs";
  }
  EXPECT_EQ(ConsoleFiles().size(), on_disk.size());
}

TEST(ConsoleFilesTest, FindsNothingElse) {
  for (const char* path :
       {"", "/index.html", "/console", "/console/", "/console/index.html",
        "console/console.js", "/console/../console/console.js",
        "/console/console.js/", "/console/CONSOLE.JS", "/console/x.js",
        "/console/package.json", "/console/CMakeLists.txt"}) {
    EXPECT_THAT(FindConsoleFile(path), IsNull()) << path;
  }
}

TEST(ConsoleFilesTest, SaysWhatEachFileIs) {
  EXPECT_EQ(FindConsoleFile("/")->content_type, "text/html; charset=utf-8");
  EXPECT_EQ(FindConsoleFile("/console/console.js")->content_type,
            "text/javascript; charset=utf-8");
  EXPECT_EQ(FindConsoleFile("/console/console.css")->content_type,
            "text/css; charset=utf-8");
  EXPECT_EQ(FindConsoleFile("/console/icon.svg")->content_type,
            "image/svg+xml");
}

TEST(ConsoleFilesTest, EtagsAreQuotedAndTellFilesApart) {
  std::set<absl::string_view> seen;
  for (const ConsoleFile& file : ConsoleFiles()) {
    EXPECT_TRUE(std::regex_match(std::string(file.etag),
                                 std::regex("\"[0-9a-f]{20}\"")))
        << file.path << " " << file.etag;
    EXPECT_TRUE(seen.insert(file.etag).second) << file.path;
  }
}

// What a page asks for is there: scripts' imports, style sheets, the icon.
TEST(ConsoleFilesTest, RefersOnlyToFilesThatAreThere) {
  int found = 0;
  const auto check = [&](const ConsoleFile& file, const char* pattern) {
    const std::string text(file.body);
    const std::regex regex(pattern);
    for (std::sregex_iterator it(text.begin(), text.end(), regex), end;
         it != end; ++it) {
      std::string path = (*it)[1];
      if (absl::StartsWith(path, "./")) path = "/console/" + path.substr(2);
      EXPECT_THAT(FindConsoleFile(path), NotNull())
          << file.path << " asks for " << path;
      ++found;
    }
  };
  for (const ConsoleFile& file : ConsoleFiles()) {
    check(file, R"re((?:src|href)="([^#"][^"]*)")re");
    check(file, R"re(from '([^']+)')re");
  }
  EXPECT_GT(found, 20);
}

// It needs no internet, and runs under default-src 'self'.
TEST(ConsoleFilesTest, AsksNoOtherHostAndHasNothingInline) {
  const std::regex url(R"re((https?://|data:|//)[a-z][^ "']*)re");
  const std::regex inline_code(R"re(<style|<script>| style="| on[a-z]+=")re");
  const std::regex markup(
      R"re(innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function)re");
  for (const ConsoleFile& file : ConsoleFiles()) {
    const std::string text(file.body);
    for (std::sregex_iterator it(text.begin(), text.end(), url), end; it != end;
         ++it) {
      // The name of a language, which nobody fetches.
      EXPECT_EQ(it->str(), "http://www.w3.org/2000/svg") << file.path;
    }
    EXPECT_FALSE(std::regex_search(text, inline_code)) << file.path;
    EXPECT_FALSE(std::regex_search(text, markup)) << file.path;
  }
}

}  // namespace
}  // namespace baton::router
