// `baton bench serve` against a cluster, over both of its doors.
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "common/json.h"
#include "tests/integration/client.h"
#include "tests/integration/cluster.h"
#include "tests/support/tiny_model.h"

namespace baton::test {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

class BenchServeTest : public testing::Test {
 protected:
  void SetUp() override {
    const std::string model_dir = scratch_.path() + "/model";
    ASSERT_TRUE(WriteTinyModel(model_dir).ok());
    cluster_ = std::make_unique<Cluster>(model_dir);
    const absl::Status started = cluster_->Start({});
    ASSERT_TRUE(started.ok()) << started;
  }

  std::vector<std::string> Http(std::vector<std::string> flags) {
    flags.insert(flags.begin(),
                 {"bench", "serve", "--url",
                  "http://" + cluster_->Address("router", "http"),
                  "--token-range", "1-60", "--json", "-"});
    return flags;
  }

  json Run(const std::vector<std::string>& flags) {
    const RunResult result = RunProgram("baton", flags);
    EXPECT_TRUE(result.exit.clean()) << result.out << result.err;
    return json::parse(result.out, nullptr, /*allow_exceptions=*/false);
  }

  std::string Write(const std::string& name, const std::string& text) {
    const std::string path = scratch_.path() + "/" + name;
    std::ofstream(path) << text;
    return path;
  }

  ScratchDir scratch_;
  std::unique_ptr<Cluster> cluster_;
};

TEST_F(BenchServeTest, MeasuresOverHttpAndWritesAPage) {
  const std::string page = scratch_.path() + "/report.html";
  const json report =
      Run(Http({"--arrivals", "constant", "--rate", "20", "--duration", "1.01",
                "--prompt-tokens", "8-40", "--output-tokens", "5", "--records",
                "--html", page}));
  const json& summary = report["summary"];
  EXPECT_EQ(summary["offered"], 20);
  EXPECT_EQ(summary["outcomes"]["finished"], 20) << summary["errors"];
  EXPECT_EQ(summary["output_tokens"], 100);
  EXPECT_EQ(summary["attainment"], 1);
  EXPECT_GT(summary["ttft_ms"]["p50"], 0);
  EXPECT_GE(summary["ttft_ms"]["p99"], summary["ttft_ms"]["p50"]);
  ASSERT_EQ(report["records"].size(), 20u);
  int64_t prompts = 0;
  for (const json& record : report["records"]) {
    EXPECT_EQ(record["output_tokens"], 5);
    prompts += record["prompt_tokens"].get<int64_t>();
  }
  EXPECT_EQ(summary["prompt_tokens"], prompts);
  std::stringstream html;
  html << std::ifstream(page).rdbuf();
  EXPECT_THAT(html.str(), HasSubstr("<svg"));
  EXPECT_THAT(html.str(), HasSubstr("Time to the first token"));
}

TEST_F(BenchServeTest, ReplaysATraceWithItsPrefixesOverGrpc) {
  std::string lines;
  for (int i = 0; i < 6; ++i) {
    absl::StrAppend(&lines, "{\"timestamp\": ", 100 * i,
                    ", \"input_length\": 1000, \"output_length\": 100, "
                    "\"hash_ids\": [0, 1]}\n");
  }
  const json report =
      Run({"bench", "serve", "--grpc", cluster_->Address("router", "grpc"),
           "--token-range", "1-60", "--json", "-", "--trace",
           Write("trace.jsonl", lines), "--length-scale", "0.1"});
  const json& summary = report["summary"];
  EXPECT_EQ(summary["outcomes"]["finished"], 6) << summary["errors"];
  EXPECT_EQ(summary["prompt_tokens"], 600);
  EXPECT_EQ(summary["output_tokens"], 60);
  // All have the same prompt.
  EXPECT_GT(summary["cached_prompt_tokens"], 100);
}

TEST_F(BenchServeTest, AClosedLoopEndsWithItsRequests) {
  const json report =
      Run(Http({"--concurrency", "3", "--requests", "9", "--prompt-tokens", "8",
                "--output-tokens", "4", "--text"}));
  EXPECT_EQ(report["summary"]["offered"], 9);
  EXPECT_EQ(report["summary"]["outcomes"]["finished"], 9)
      << report["summary"]["errors"];
}

// A target that nothing can meet: the search ends, and says that none did.
TEST_F(BenchServeTest, CapacityCountsMissesAgainstTheServer) {
  const json report = Run(Http(
      {"--capacity", "--rate", "8", "--duration", "0.5", "--prompt-tokens", "8",
       "--output-tokens", "4", "--ttft", "0.000001", "--trials", "2"}));
  EXPECT_EQ(report["capacity"]["requests_per_second"], 0);
  ASSERT_EQ(report["capacity"]["trials"].size(), 2u);
  EXPECT_EQ(report["capacity"]["trials"][1]["offered_per_second"], 4);
  EXPECT_EQ(report["summary"]["attainment"], 0);
}

TEST_F(BenchServeTest, RejectedRequestsAreCounted) {
  // Longer than any context.
  const json report = Run(
      Http({"--rate", "8", "--duration", "0.5", "--prompt-tokens", "100000"}));
  EXPECT_GT(report["summary"]["outcomes"]["failed"], 0);
  EXPECT_THAT(report["summary"]["errors"][0]["error"].get<std::string>(),
              HasSubstr("HTTP 400"));
}

TEST(BenchServeFlagsTest, ErrorsNameFlagOrServer) {
  const auto error = [](std::vector<std::string> flags, int code) {
    flags.insert(flags.begin(), {"bench", "serve"});
    const RunResult result = RunProgram("baton", flags);
    EXPECT_EQ(result.exit.code, code) << result.err;
    return result.err;
  };
  EXPECT_THAT(error({"--prompt-tokens", "9-3"}, 2),
              HasSubstr("--prompt-tokens \"9-3\""));
  EXPECT_THAT(error({"--url", "ftp://x"}, 2), HasSubstr("http://"));
  EXPECT_THAT(error({"--url", "http://127.0.0.1:1"}, 1),
              HasSubstr("does not answer"));
  EXPECT_THAT(error({"--trace", "/nonexistent.csv"}, 1),
              HasSubstr("/nonexistent.csv"));
}

}  // namespace
}  // namespace baton::test
