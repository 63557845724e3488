// `baton synth`, `bench engine`, `perplexity` and `doctor` as a user runs them.
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/json.h"
#include "tests/integration/cluster.h"

namespace baton::test {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

class ModelToolsTest : public testing::Test {
 protected:
  void SetUp() override {
    model_dir_ = scratch_.path() + "/model";
    const RunResult made = Baton({"synth", "tiny", model_dir_});
    ASSERT_TRUE(made.exit.clean()) << made.err;
    EXPECT_THAT(made.out, HasSubstr("tiny, 0.1 M parameters"));
  }

  static RunResult Baton(const Flags& flags) {
    return RunProgram("baton", flags);
  }

  // What it writes to standard output, which must be JSON.
  static json BatonJson(const Flags& flags) {
    const RunResult result = Baton(flags);
    EXPECT_TRUE(result.exit.clean()) << result.err;
    return json::parse(result.out, nullptr, /*allow_exceptions=*/false);
  }

  // Fails with this exit code; what it says.
  static std::string Fails(int code, const Flags& flags) {
    const RunResult result = Baton(flags);
    EXPECT_EQ(result.exit.code, code) << result.out;
    EXPECT_EQ(result.exit.signal, 0);
    EXPECT_EQ(result.out, "");
    return result.err;
  }

  ScratchDir scratch_;
  std::string model_dir_;
};

TEST_F(ModelToolsTest, SynthWritesOnce) {
  EXPECT_THAT(Baton({"synth", "tiny", model_dir_}).out,
              HasSubstr("was there already"));
  EXPECT_THAT(Fails(1, {"synth", "tiny", model_dir_, "--seed", "2"}),
              HasSubstr("--replace"));
  EXPECT_TRUE(Baton({"synth", "TINY", model_dir_, "--seed", "2", "--replace",
                     "--dtype", "f32", "--no-tie"})
                  .exit.clean());
  EXPECT_THAT(Fails(2, {"synth", "nothing", model_dir_}),
              HasSubstr("there is no shape 'nothing'"));
  EXPECT_THAT(Fails(2, {"synth", "tiny", model_dir_, "--vocab", "2"}),
              HasSubstr("--vocab 2"));
  EXPECT_THAT(Fails(2, {"synth", "tiny", model_dir_, "--tie", "--no-tie"}),
              HasSubstr("--no-tie"));
  EXPECT_THAT(Fails(1, {"synth", "tiny", scratch_.path()}),
              HasSubstr("holds something else"));
}

TEST_F(ModelToolsTest, BenchEngineMeasures) {
  const std::string plot = scratch_.path() + "/plot.svg";
  const json report = BatonJson(
      {"bench",  "engine", "--model", model_dir_, "--pp",      "32,64",
       "--tg",   "4",      "--batch", "1,2",      "--context", "0,16,2000",
       "--reps", "2",      "-t",      "1,2",      "--json",    "-",
       "--plot", plot,     "-q"});
  ASSERT_TRUE(report.is_object());
  EXPECT_EQ(report["model"], "model");
  EXPECT_EQ(report["ceilings"].size(), 2u);
  EXPECT_EQ(report["rows"].size(), 2u * (2 + 6));
  int skipped = 0;
  for (const json& row : report["rows"]) {
    if (row.contains("skipped")) {
      ++skipped;
    } else {
      EXPECT_GT(row["tokens_per_second"], 0) << row;
    }
  }
  EXPECT_EQ(skipped, 4);
  std::ifstream in(plot);
  EXPECT_THAT((std::string{std::istreambuf_iterator<char>(in), {}}),
              HasSubstr("</svg>"));

  const RunResult table = Baton({"bench", "engine", "--model", model_dir_,
                                 "--pp", "16", "--tg", "0", "--no-ceilings"});
  EXPECT_TRUE(table.exit.clean()) << table.err;
  EXPECT_THAT(table.out, HasSubstr("tokens/s"));
  EXPECT_THAT(table.out, HasSubstr("\npp16 "));
}

TEST_F(ModelToolsTest, BenchEngineSaysWhatIsWrong) {
  Fails(2, {"bench"});
  Fails(2, {"bench", "engine"});
  EXPECT_THAT(
      Fails(2, {"bench", "engine", "--model", model_dir_, "--batch", "0"}),
      HasSubstr("--batch"));
  EXPECT_THAT(
      Fails(2, {"bench", "engine", "--model", model_dir_, "--weights", "int5"}),
      HasSubstr("--weights"));
  EXPECT_THAT(Fails(1, {"bench", "engine", "--model", "/nowhere"}),
              HasSubstr("/nowhere"));
  EXPECT_THAT(Fails(1, {"bench", "engine", "--model", model_dir_, "--isa",
                        "abacus", "--no-ceilings"}),
              HasSubstr("abacus"));
}

TEST_F(ModelToolsTest, PerplexityOfAKnownModel) {
  const std::string stories = BATON_SOURCE_DIR "/models/stories";
  const std::string text = BATON_SOURCE_DIR "/tests/data/stories.txt";
  const json report = BatonJson({"perplexity", stories, text, "--json", "-q"});
  ASSERT_TRUE(report.is_object());
  const json& row = report["rows"][0];
  // Not a measure of the model, but of whether it is run right: 23 when it was
  // written.
  EXPECT_GT(row["perplexity"], 18);
  EXPECT_LT(row["perplexity"], 28);
  EXPECT_GT(row["tokens_scored"], 2000);
  // A model of random weights guesses among its 512 tokens.
  const json random = BatonJson(
      {"perplexity", model_dir_, text, "--json", "-q", "--context", "128"});
  EXPECT_GT(random["rows"][0]["perplexity"], 300);
}

TEST_F(ModelToolsTest, PerplexityComparesWeights) {
  const std::string text = scratch_.path() + "/text";
  std::ofstream(text) << "There was a fox. It had a hat.";
  const RunResult result =
      Baton({"perplexity", BATON_SOURCE_DIR "/models/stories", text,
             "--compare", "bf16,int8,int4", "-q"});
  EXPECT_TRUE(result.exit.clean()) << result.err;
  EXPECT_THAT(result.out, HasSubstr("\nbf16 "));
  EXPECT_THAT(result.out, HasSubstr("\nint8 "));
  EXPECT_THAT(result.out, HasSubstr("\nint4 "));
  EXPECT_THAT(Fails(1, {"perplexity", model_dir_, "/nowhere"}),
              HasSubstr("/nowhere"));
  std::ofstream(text, std::ios::trunc).close();
  EXPECT_THAT(Fails(1, {"perplexity", model_dir_, text}),
              HasSubstr("a text of 1 tokens"));
}

TEST_F(ModelToolsTest, DoctorLooksAtMachineAndModel) {
  // Whether the machine is well is not ours to say here.
  const RunResult quick =
      Baton({"doctor", "--json", "--no-measure", "--model", model_dir_});
  EXPECT_THAT(quick.err, "");
  const json report = json::parse(quick.out, nullptr, false);
  ASSERT_TRUE(report.is_object()) << quick.out;
  EXPECT_EQ(quick.exit.code, report["healthy"] ? 0 : 1);
  EXPECT_GT(report["usable_cpus"], 0);
  EXPECT_GT(report["memory_total"], 0);
  EXPECT_EQ(report["kernel_sets"].back(), "portable");
  EXPECT_EQ(report["model"].size(), 3u);
  EXPECT_TRUE(report["model"][0]["fits"]);
  EXPECT_TRUE(report["ceilings"].empty());

  // gpt-oss has one more way to lie in memory.
  const RunResult oss =
      Baton({"doctor", "--json", "--no-measure", "--model",
             BATON_SOURCE_DIR "/tests/golden/models/gpt_oss"});
  const json kinds = json::parse(oss.out, nullptr, false)["model"];
  ASSERT_EQ(kinds.size(), 4u) << oss.out;
  EXPECT_EQ(kinds[1]["weights"], "mxfp4");
  EXPECT_LT(kinds[1]["worker_bytes"], kinds[0]["worker_bytes"]);

  const RunResult text = Baton({"doctor"});
  EXPECT_THAT(text.out, HasSubstr("GFLOP/s"));
  EXPECT_THAT(text.out, HasSubstr("memory"));
  EXPECT_THAT(Fails(1, {"doctor", "--no-measure", "--model", "/nowhere"}),
              HasSubstr("/nowhere"));
}

}  // namespace
}  // namespace baton::test
