// `baton plan`: without a cluster, and with the costs of one that runs.
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/json.h"
#include "tests/integration/client.h"
#include "tests/integration/cluster.h"
#include "tests/support/tiny_model.h"

namespace baton::test {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

std::string ReadText(const std::string& path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

TEST(PlanTest, FindsWorkersForAKnownGpu) {
  ScratchDir scratch;
  const std::string page = scratch.path() + "/plan.html";
  const std::string profile = scratch.path() + "/profile.json";
  const RunResult result = RunProgram(
      "baton",
      {"plan",         "--gpu",           "h200",     "--model-shape",
       "llama-3.1-8b", "--rate",          "30",       "--duration",
       "10",           "--prompt-tokens", "500-3500", "--output-tokens",
       "100-300",      "--ttft",          "500",      "--itl",
       "25",           "--json",          "-",        "--html",
       page,           "--write-profile", profile,    "-q"});
  EXPECT_TRUE(result.exit.clean()) << result.err;
  const json plan = json::parse(result.out, nullptr, false);
  ASSERT_TRUE(plan.is_object()) << result.out;
  EXPECT_EQ(plan["kind"], "plan");
  EXPECT_TRUE(plan["found"]);
  EXPECT_GE(plan["best"]["result"]["attainment"], 0.9);
  EXPECT_GE(plan["best"]["decode"], 1);
  EXPECT_EQ(plan["sensitivity"].size(), 25u);
  EXPECT_THAT(ReadText(page), HasSubstr("<svg"));

  // The same by the profile that it wrote.
  const RunResult again = RunProgram(
      "baton",
      {"plan", "--profile", profile, "--rate", "30", "--duration", "10",
       "--prompt-tokens", "500-3500", "--output-tokens", "100-300", "--ttft",
       "500", "--itl", "25", "--json", "-", "-q", "--no-sensitivity"});
  const json same = json::parse(again.out, nullptr, false);
  ASSERT_TRUE(same.is_object()) << again.out << again.err;
  EXPECT_EQ(same["best"], plan["best"]);
}

TEST(PlanTest, SimulatesTheClusterThatIsAskedFor) {
  const RunResult result = RunProgram(
      "baton",
      {"plan", "--gpu", "L40S", "--model-shape", "SmolLM2-360M", "--prefill",
       "1", "--decode", "2", "--rate", "500", "--duration", "5",
       "--prompt-tokens", "2000", "--ttft", "100", "--no-sensitivity"});
  EXPECT_THAT(result.out, HasSubstr("NOT ENOUGH: 1 prefill + 2 decode"));
  EXPECT_FALSE(result.exit.clean());
}

// Few streams of a mixture read few of its experts.
TEST(PlanTest, ReckonsWithTheExpertsThatStreamsRead) {
  double last = 0;
  for (const char* streams : {"1", "16", "0"}) {
    const RunResult result = RunProgram(
        "baton", {"plan", "--gpu", "H200", "--model-shape", "Qwen3-30B-A3B",
                  "--expert-streams", streams, "--decode", "1", "--prefill",
                  "0", "--rate", "0.2", "--duration", "30", "--json", "-", "-q",
                  "--no-sensitivity"});
    const json plan = json::parse(result.out, nullptr, false);
    ASSERT_TRUE(plan.is_object()) << result.out << result.err;
    const double tpot = plan["best"]["result"]["tpot_ms"]["p50"];
    EXPECT_GT(tpot, 1.2 * last) << streams;
    last = tpot;
  }
}

TEST(PlanTest, NamesTheFlagThatIsWrong) {
  ScratchDir scratch;
  const std::string bad = scratch.path() + "/bad.json";
  std::ofstream(bad) << "{\"kind\": \"baton_profile\", \"version\": 1, "
                        "\"decode\": {\"block_size\": 0}}";
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{}, "--profile FILE"},
      {{"--gpu", "H999", "--model-shape", "tiny"}, "H999"},
      {{"--gpu", "H200", "--model-shape", "DeepSeek-V3"},
       "DeepSeek-V3 does not fit"},
      {{"--gpu", "H100"}, "--model-shape"},
      {{"--gpu", "H100", "--model-shape", "tiny", "--expert-streams", "3"},
       "--expert-streams: tiny has no experts"},
      {{"--profile", bad}, bad + ": .decode.block_size"},
      {{"--profile", scratch.path() + "/none.json"}, "none.json"},
      {{"--gpu", "H100", "--model-shape", "tiny", "--concurrency", "3"},
       "--concurrency"},
      {{"--gpu", "H100", "--model-shape", "tiny", "--workers", "9-3"},
       "--workers"},
      {{"--gpu", "H100", "--model-shape", "tiny", "--prefill", "3"},
       "--decode"},
      {{"--gpu", "H100", "--model-shape", "tiny", "--mode", "disaggregated",
        "--workers", "1"},
       "--workers"},
      {{"--gpu", "H100", "--model-shape", "tiny", "--trace", bad}, bad},
      {{"--gpu", "H100", "--model-shape", "tiny", "--rate", "nan"}, "--rate"},
      {{"--gpu", "H100", "--model-shape", "tiny", "--ttft", "nan"}, "--ttft"},
      {{"--gpu", "H100", "--model-shape", "tiny", "--rate", "1e6", "--duration",
        "1e6"},
       "--rate"},
      {{"--gpu", "H100", "--model-shape", "tiny", "--prefill", "100000",
        "--decode", "100000"},
       "--prefill"},
  };
  for (const auto& [flags, message] : cases) {
    std::vector<std::string> arguments = {"plan", "-q"};
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    const RunResult result = RunProgram("baton", arguments);
    EXPECT_FALSE(result.exit.clean()) << message;
    EXPECT_THAT(result.err, HasSubstr(message));
  }
}

TEST(PlanTest, TakesTheCostsOfAClusterThatRuns) {
  ScratchDir scratch;
  const std::string model_dir = scratch.path() + "/model";
  ASSERT_TRUE(WriteTinyModel(model_dir).ok());
  Cluster cluster(model_dir);
  const absl::Status started = cluster.Start({});
  ASSERT_TRUE(started.ok()) << started;
  const RunResult load = RunProgram(
      "baton",
      {"bench", "serve", "--url", "http://" + cluster.Address("router", "http"),
       "--token-range", "1-60", "--rate", "40", "--duration", "2", "--timeout",
       "300", "--prompt-tokens", "8-40", "--output-tokens", "8", "--json",
       "-"});
  ASSERT_TRUE(load.exit.clean()) << load.err;

  const std::string file = scratch.path() + "/cluster.json";
  const RunResult profile =
      RunProgram("baton", {"plan", "profile", "--seconds", "0.5", "--router",
                           cluster.Address("router", "grpc"), file});
  ASSERT_TRUE(profile.exit.clean()) << profile.err;
  const json written = json::parse(ReadText(file), nullptr, false);
  ASSERT_TRUE(written.is_object());
  EXPECT_EQ(written["kind"], "baton_profile");
  EXPECT_GT(written["decode"]["total_blocks"], 0);
  EXPECT_GT(written["kv_bytes_per_token"], 0);
  // All steps are alike, so any of the terms may have what they take.
  double cost = 0;
  for (const char* term :
       {"fixed_seconds", "seconds_per_token", "seconds_per_context_token",
        "seconds_per_sequence"}) {
    cost += written["decode"][term].get<double>();
  }
  EXPECT_GT(cost, 0);

  const RunResult plan = RunProgram(
      "baton", {"plan", "--profile", file, "--rate", "10", "--duration", "20",
                "--prompt-tokens", "8-40", "--output-tokens", "8",
                "--no-sensitivity", "--json", "-", "-q"});
  EXPECT_TRUE(plan.exit.clean()) << plan.err;
  EXPECT_TRUE(json::parse(plan.out, nullptr, false)["found"]);
}

}  // namespace
}  // namespace baton::test
