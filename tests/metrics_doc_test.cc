// docs/metrics.md names every metric that the code makes, and no other.

#include <filesystem>
#include <fstream>
#include <regex>
#include <set>
#include <sstream>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace baton {
namespace {

std::string ReadFile(const std::filesystem::path& path) {
  std::ifstream in(path);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

std::set<std::string> Names(const std::string& text, const char* pattern) {
  const std::regex regex(pattern);
  std::set<std::string> names;
  for (std::sregex_iterator it(text.begin(), text.end(), regex), end; it != end;
       ++it) {
    names.insert((*it)[1]);
  }
  return names;
}

std::set<std::string> NamesInCode(const char* pattern) {
  std::set<std::string> names;
  for (const char* folder :
       {"common", "worker", "prefill_worker", "decode_worker", "router"}) {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(
             std::filesystem::path(BATON_SOURCE_DIR) / folder)) {
      if (entry.path().extension() != ".cc") continue;
      names.merge(Names(ReadFile(entry.path()), pattern));
    }
  }
  return names;
}

TEST(MetricsDocTest, CodeAndPageAgree) {
  const std::set<std::string> in_code = NamesInCode("\"(baton_[a-z_]+)\"");
  EXPECT_GT(in_code.size(), 30u);
  const std::set<std::string> on_page = Names(
      ReadFile(std::filesystem::path(BATON_SOURCE_DIR) / "docs" / "metrics.md"),
      "`(baton_[a-z_]+)[`{]");
  EXPECT_THAT(on_page, ::testing::ContainerEq(in_code));
}

// The names that --metrics-compat adds.
TEST(MetricsDocTest, CodeAndPageAgreeOnTheNamesOfVllm) {
  const std::set<std::string> in_code = NamesInCode("\"(vllm:[a-z_]+)\"");
  EXPECT_GT(in_code.size(), 20u);
  const std::set<std::string> on_page = Names(
      ReadFile(std::filesystem::path(BATON_SOURCE_DIR) / "docs" / "metrics.md"),
      "`(vllm:[a-z_]+)`");
  EXPECT_THAT(on_page, ::testing::ContainerEq(in_code));
}

}  // namespace
}  // namespace baton
