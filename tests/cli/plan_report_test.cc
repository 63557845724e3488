#include "cli/plan_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace baton::cli {
namespace {

using testing::HasSubstr;
using testing::Not;

planner::PlanTrial Trial(int32_t prefill, int32_t decode, double attainment) {
  planner::PlanTrial trial;
  trial.num_prefill = prefill;
  trial.num_decode = decode;
  planner::SimulationResult& result = trial.result;
  result.offered = 600;
  result.attainment = attainment;
  result.total_seconds = 60;
  result.ttft = workload::PercentilesOf({100, 200});
  result.prefill = {.workers = prefill, .busy = 0.5, .prompt_tokens = 120'000};
  result.decode = {.workers = decode, .busy = 0.8, .batch = 10};
  return trial;
}

PlanReport Report() {
  PlanReport report;
  report.source = "made <up>";
  report.requests = 600;
  report.window_seconds = 60;
  report.simulation.targets.ttft = absl::Milliseconds(500);
  report.plan.found = true;
  report.plan.best = Trial(2, 4, 0.97);
  report.plan.splits = {Trial(1, 5, 0.5), report.plan.best};
  report.plan.too_few = 5;
  report.sensitivity = {{0.5, 1, 1, 5}, {1, 1, 0.97, 9}};
  return report;
}

TEST(PlanReportTest, SaysWhatToRunAndWhatEachHasToDo) {
  const std::string text = PlanText(Report());
  EXPECT_THAT(text, HasSubstr("2 prefill + 4 decode workers keep 97.0%"));
  EXPECT_THAT(text, HasSubstr("5 workers are too few"));
  EXPECT_THAT(text, HasSubstr("TTFT 500 ms, ITL any, for 90%"));
  // 10 requests a second for two and for four; 120,000 tokens in 60 seconds.
  EXPECT_THAT(text, HasSubstr("prefill  5 requests per second, 1000 prompt"));
  EXPECT_THAT(text, HasSubstr("decode   2.5 requests per second, 8.0 seq"));
  EXPECT_THAT(text, HasSubstr("load x0.5"));
  // A step of 20 ms has 10 ms for streams of 1 ms each.
  PlanReport bounded = Report();
  bounded.simulation.targets.itl = absl::Milliseconds(20);
  bounded.simulation.profile.decode.cost = {.fixed = 0.0099,
                                            .per_token = 0.001};
  EXPECT_THAT(PlanText(bounded), HasSubstr("with up to 10 sequences"));
  EXPECT_THAT(text, Not(HasSubstr("with up to")));
  EXPECT_THAT(text, Not(HasSubstr("NOT ENOUGH")));
}

TEST(PlanReportTest, SaysWhenItIsNotEnough) {
  PlanReport report = Report();
  report.plan.found = false;
  EXPECT_THAT(PlanText(report), HasSubstr("NOT ENOUGH: 2 prefill"));
}

TEST(PlanReportTest, JsonHasTheNumbers) {
  const nlohmann::ordered_json json = PlanJson(Report());
  EXPECT_EQ(json["kind"], "plan");
  EXPECT_EQ(json["best"]["prefill"], 2);
  EXPECT_EQ(json["best"]["decode"], 4);
  EXPECT_EQ(json["splits"].size(), 2u);
  EXPECT_EQ(json["autoscaler"]["decode_worker"]["requests_per_second"], 2.5);
  EXPECT_EQ(json["sensitivity"][0]["load_factor"], 0.5);
  EXPECT_EQ(json["best"]["result"]["ttft_ms"]["max"], 200);
}

TEST(PlanReportTest, AggregatedClustersHaveNoPrefillWorkers) {
  PlanReport report = Report();
  report.plan.best = Trial(0, 6, 1);
  EXPECT_FALSE(PlanJson(report)["autoscaler"].contains("prefill_worker"));
  EXPECT_THAT(PlanText(report), HasSubstr("0 prefill + 6 decode"));
}

TEST(PlanReportTest, ThePageHasPlotsAndNoForeignMarkup) {
  const std::string html = PlanHtml(Report());
  EXPECT_THAT(html, HasSubstr("<svg"));
  EXPECT_THAT(html, HasSubstr("made &lt;up&gt;"));
  EXPECT_THAT(html, HasSubstr("6 workers, by split"));
  EXPECT_THAT(html, HasSubstr("Attainment at other loads"));
}

}  // namespace
}  // namespace baton::cli
