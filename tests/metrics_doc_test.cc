// docs/metrics.md names every metric that the code makes, and no other, and the
// edges of every histogram's buckets.

#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "common/metrics/metrics.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "router/router_metrics.h"
#include "tests/support/idle_engine.h"
#include "worker/worker_metrics.h"

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

// Edges by name of histogram.
using Edges = std::map<std::string, std::vector<double>>;

// Those of a page of metrics, of one member each.
Edges EdgesServed(const std::string& page) {
  const std::regex bucket(R"re((\w+)_bucket\{([^}]*)le="([0-9.e+-]+)"\} )re");
  Edges edges;
  std::map<std::string, std::string> first_labels;
  for (std::sregex_iterator it(page.begin(), page.end(), bucket), end;
       it != end; ++it) {
    const std::string name = (*it)[1];
    const std::string labels = (*it)[2];
    if (first_labels.try_emplace(name, labels).first->second != labels) {
      continue;
    }
    edges[name].push_back(std::stod((*it)[3]));
  }
  return edges;
}

// Those of the table of docs/metrics.md: | of | edges | metrics |.
Edges EdgesOnPage() {
  const std::string page =
      ReadFile(std::filesystem::path(BATON_SOURCE_DIR) / "docs" / "metrics.md");
  const size_t begin = page.find("\n## Buckets\n");
  EXPECT_NE(begin, std::string::npos);
  const std::string section =
      page.substr(begin, page.find("\n## ", begin + 1) - begin);
  Edges edges;
  for (const std::string& line :
       std::vector<std::string>(absl::StrSplit(section, '\n'))) {
    const std::vector<std::string> cells = absl::StrSplit(line, " | ");
    if (cells.size() != 3 || cells[1] == "edges" || cells[1] == "---") continue;
    std::vector<double> row;
    for (const std::string& edge :
         std::vector<std::string>(absl::StrSplit(cells[1], ' '))) {
      double value = 0;
      EXPECT_TRUE(absl::SimpleAtod(edge, &value)) << edge << " in: " << line;
      row.push_back(value);
    }
    for (const std::string& name : Names(cells[2], "`(baton_[a-z_0-9]+)`")) {
      EXPECT_TRUE(edges.emplace(name, row).second) << name << " is there twice";
    }
  }
  return edges;
}

TEST(MetricsDocTest, CodeAndPageAgreeOnBuckets) {
  const test::IdleEngine engine;
  metrics::Metrics of_router{metrics::Labels()}, of_worker{metrics::Labels()};
  const router::RouterMetrics router(&of_router);
  const worker::WorkerMetrics worker(&of_worker, engine);
  Edges served = EdgesServed(of_router.Text());
  served.merge(EdgesServed(of_worker.Text()));
  EXPECT_GT(served.size(), 20u);
  const Edges on_page = EdgesOnPage();
  for (const auto& [name, edges] : served) {
    const auto row = on_page.find(name);
    if (row == on_page.end()) {
      ADD_FAILURE() << "docs/metrics.md, Buckets: " << name << " is missing";
      continue;
    }
    EXPECT_THAT(row->second, ::testing::Pointwise(::testing::DoubleEq(), edges))
        << name;
  }
  for (const auto& [name, edges] : on_page) {
    EXPECT_TRUE(served.contains(name)) << name << " is no histogram";
  }
}

}  // namespace
}  // namespace baton
