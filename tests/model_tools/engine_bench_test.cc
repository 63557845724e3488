#include "model_tools/engine_bench.h"

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/model_config.h"
#include "model_tools/engine_bench_json.h"
#include "model_tools/model_costs.h"
#include "tests/support/scratch_dir.h"
#include "tests/support/tiny_model.h"

namespace baton::model_tools {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Kind = BenchTest::Kind;

TEST(BenchTestTest, HasAName) {
  EXPECT_EQ((BenchTest{Kind::kPrefill, 512, 1, 0}).Name(), "pp512");
  EXPECT_EQ((BenchTest{Kind::kDecode, 128, 1, 0}).Name(), "tg128");
  EXPECT_EQ((BenchTest{Kind::kDecode, 64, 4, 1024}).Name(), "tg64@b4@d1024");
  EXPECT_EQ((BenchTest{Kind::kDecode, 64, 4, 1024}).Positions(), 1088);
}

TEST(BenchStatisticsTest, MedianAndDeviation) {
  EXPECT_EQ(Median({3, 1, 2}), 2);
  EXPECT_EQ(Median({4, 1, 3, 2}), 2.5);
  EXPECT_EQ(StandardDeviation({5}), 0);
  EXPECT_DOUBLE_EQ(StandardDeviation({2, 4, 4, 4, 5, 5, 7, 9}) *
                       StandardDeviation({2, 4, 4, 4, 5, 5, 7, 9}),
                   32.0 / 7);
}

class SummarizeRowTest : public testing::Test {
 protected:
  SummarizeRowTest() {
    config_.num_layers = 2;
    config_.hidden_size = 64;
    config_.num_heads = 4;
    config_.num_kv_heads = 2;
    config_.head_dim = 16;
    config_.intermediate_size = 128;
    config_.vocab_size = 100;
    layout_ = MakeKvLayout(config_, engine::KvDtype::kBf16, 16, 1);
    ceilings_.bf16_gflops = 100;
    ceilings_.int8_gops = 400;
    ceilings_.memory_gbs = 10;
  }

  BenchRow Summarize(const std::string& weights, BenchTest test,
                     std::vector<double> seconds) {
    EngineBenchReport report;
    report.weights = weights;
    BenchRow row;
    row.test = test;
    row.seconds = std::move(seconds);
    SummarizeRow(report, config_, layout_, /*chunk=*/100, &ceilings_, &row);
    return row;
  }

  engine::ModelConfig config_;
  engine::KvLayout layout_;
  engine::cpu::Ceilings ceilings_;
};

TEST_F(SummarizeRowTest, OfAPromptInChunks) {
  const BenchRow row =
      Summarize("bf16", {Kind::kPrefill, 250, 1, 0}, {0.4, 0.5, 1.0});
  EXPECT_DOUBLE_EQ(row.tokens_per_second, 500);
  EXPECT_GT(row.spread, 0);
  EXPECT_DOUBLE_EQ(row.step_ms, 500.0 / 3);
  const double operations = SequenceOperations(config_, {0, 250, 1});
  EXPECT_NEAR(row.gflops, operations / 0.5e9, 1e-9);
  // The layers three times, the head once, 100 and 200 positions of KV.
  const double bytes = 3 * LayerMatrixBytes(config_, WeightKind::kBf16) +
                       HeadBytes(config_, WeightKind::kBf16) +
                       SequenceKvBytes(config_, layout_, {300, 1, 1});
  EXPECT_NEAR(row.gbs, bytes / 0.5e9, 1e-9);
  EXPECT_DOUBLE_EQ(*row.compute_share, row.gflops / 100);
  EXPECT_DOUBLE_EQ(*row.memory_share, row.gbs / 10);
}

TEST_F(SummarizeRowTest, OfBatchedSteps) {
  const BenchRow row = Summarize("int8", {Kind::kDecode, 2, 3, 10}, {0.25});
  EXPECT_DOUBLE_EQ(row.tokens_per_second, 24);
  EXPECT_EQ(row.spread, 0);
  EXPECT_DOUBLE_EQ(row.step_ms, 125);
  const double operations = 3 * (SequenceOperations(config_, {10, 1, 1}) +
                                 SequenceOperations(config_, {11, 1, 1}));
  EXPECT_NEAR(row.gflops, operations / 0.25e9, 1e-12);
  // The weights once per step, whatever the batch; KV for each sequence.
  const double bytes = 2 * (LayerMatrixBytes(config_, WeightKind::kInt8) +
                            HeadBytes(config_, WeightKind::kInt8)) +
                       3 * SequenceKvBytes(config_, layout_, {21, 1, 1});
  EXPECT_NEAR(row.gbs, bytes / 0.25e9, 1e-12);
  EXPECT_DOUBLE_EQ(*row.compute_share, row.gflops / 400);
}

class EngineBenchTest : public testing::Test {
 protected:
  void SetUp() override {
    options_.model_dir = scratch_.path() + "/engine_bench_test";
    ASSERT_TRUE(test::WriteTinyModel(options_.model_dir).ok());
    options_.prompts = {40};
    options_.steps = {6};
    options_.batches = {1, 3};
    options_.contexts = {0, 20};
    options_.repetitions = 2;
    options_.chunk = 16;
    options_.ceilings = false;
  }

  absl::StatusOr<EngineBenchReport> Run() {
    return RunEngineBench(
        options_, {[&](const std::string& what) { notes_.push_back(what); },
                   [&](const EngineBenchReport& report, const BenchRow& row) {
                     EXPECT_FALSE(report.backend.empty());
                     names_.push_back(row.test.Name());
                   }});
  }

  test::ScratchDir scratch_;
  EngineBenchOptions options_;
  std::vector<std::string> notes_, names_;
};

TEST_F(EngineBenchTest, RunsEveryTestForEachNumberOfThreads) {
  options_.threads = {1, 2};
  const auto report = Run();
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->model, "engine_bench_test");
  EXPECT_EQ(report->weights, "bf16");
  EXPECT_GT(report->parameters, 0);
  EXPECT_THAT(names_,
              ElementsAre("pp40", "tg6", "tg6@b3", "tg6@d20", "tg6@b3@d20",
                          "pp40", "tg6", "tg6@b3", "tg6@d20", "tg6@b3@d20"));
  for (const BenchRow& row : report->rows) {
    EXPECT_EQ(row.skipped, "");
    EXPECT_EQ(row.seconds.size(), 2u);
    EXPECT_GT(row.tokens_per_second, 0);
    EXPECT_FALSE(row.compute_share.has_value());
  }
  EXPECT_EQ(report->rows[0].threads, 1);
  EXPECT_EQ(report->rows[9].threads, 2);
}

TEST_F(EngineBenchTest, SkipsWhatDoesNotFitAndSaysSo) {
  options_.contexts = {0, 510};  // of 512 positions
  options_.batches = {1, 1000};
  options_.max_kv_bytes = int64_t{1} << 20;
  const auto report = Run();
  ASSERT_TRUE(report.ok()) << report.status();
  ASSERT_EQ(report->rows.size(), 5u);
  EXPECT_EQ(report->rows[1].skipped, "");
  EXPECT_THAT(report->rows[2].skipped, HasSubstr("GiB of KV"));
  EXPECT_THAT(report->rows[3].skipped, HasSubstr("the model has 512"));
}

TEST_F(EngineBenchTest, JsonHasWhatTheHeaderSays) {
  options_.ceilings = true;
  options_.contexts = {0, 1000};
  const auto report = Run();
  ASSERT_TRUE(report.ok()) << report.status();
  const nlohmann::json json = EngineBenchJson(*report, options_.threads);
  EXPECT_EQ(json["kind"], "baton bench engine");
  EXPECT_EQ(json["version"], 1);
  EXPECT_EQ(json["ceilings"][0]["threads"], 1);
  EXPECT_GT(json["ceilings"][0]["memory_gbs"], 0);
  const nlohmann::json& prompt = json["rows"][0];
  EXPECT_EQ(prompt["test"], "pp40");
  EXPECT_EQ(prompt["kind"], "prefill");
  EXPECT_EQ(prompt["seconds"].size(), 2u);
  for (const char* name : {"tokens_per_second", "step_ms", "gflops", "gbs",
                           "compute_share", "memory_share"}) {
    EXPECT_GT(prompt[name], 0) << name;
  }
  EXPECT_TRUE(json["rows"].back().contains("skipped"));
  EXPECT_FALSE(json["rows"].back().contains("seconds"));
  const std::string svg = EngineBenchSvg(*report);
  EXPECT_THAT(svg, HasSubstr("Prefill: one prompt"));
  EXPECT_THAT(svg, HasSubstr("1 thread, 6 steps after 0"));
  EXPECT_THAT(svg, testing::Not(HasSubstr("nan")));
}

TEST_F(EngineBenchTest, RefusesWhatMakesNoTest) {
  const auto message = [&] { return std::string(Run().status().message()); };
  options_.threads = {0};
  EXPECT_THAT(message(), HasSubstr("--threads 0"));
  options_.threads = {1};
  options_.contexts = {-1};
  EXPECT_THAT(message(), HasSubstr("--context -1"));
  options_.contexts = {0};
  options_.prompts = {};
  options_.steps = {};
  EXPECT_THAT(message(), HasSubstr("nothing to measure"));
  options_.prompts = {4};
  options_.model_dir = "/nowhere";
  EXPECT_EQ(Run().status().code(), absl::StatusCode::kNotFound);
  EXPECT_TRUE(notes_.empty());
}

}  // namespace
}  // namespace baton::model_tools
