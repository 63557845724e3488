#include "planner/plan_search.h"

#include <vector>

#include <gtest/gtest.h>

#include "workload/workload.h"

namespace baton::planner {
namespace {

SimulationOptions Cluster() {
  SimulationOptions options;
  WorkerProfile worker;
  worker.cost = {.fixed = 0.005,
                 .per_token = 0.0005,
                 .per_context_token = 1e-7,
                 .per_sequence = 0.0001};
  worker.cost.per_prompt_context_token = 1e-8;
  worker.total_blocks = 20000;
  worker.max_context = 16384;
  options.profile.prefill = options.profile.decode = worker;
  options.profile.kv_bytes_per_token = 1000;
  options.profile.link_bytes_per_second = 1e9;
  options.allow_local_prefill = false;
  options.targets = {absl::Seconds(2), absl::Milliseconds(25)};
  return options;
}

Load MakeLoad(double rate, int32_t prompt, int32_t output) {
  workload::SyntheticOptions options;
  options.arrivals.rate = rate;
  options.prompt = {prompt, prompt};
  options.output = {output, output};
  options.duration = absl::Seconds(60);
  return {workload::MakeSynthetic(options), options.duration};
}

TEST(PlanSearchTest, LongPromptsTakePrefillWorkers) {
  // Half a second of a prefill worker each, next to nothing of decoding.
  const Load load = MakeLoad(8, 1000, 4);
  PlanSearch search({.simulation = Cluster(), .most_workers = 64}, &load);
  const Plan plan = search.BestSplit(8);
  EXPECT_GE(plan.best.num_prefill, 6);
  EXPECT_EQ(plan.best.num_workers(), 8);
  EXPECT_EQ(plan.splits.size(), 7u);
}

TEST(PlanSearchTest, LongAnswersTakeDecodeWorkers) {
  const Load load = MakeLoad(8, 20, 300);
  PlanSearch search({.simulation = Cluster(), .most_workers = 64}, &load);
  const Plan plan = search.BestSplit(8);
  EXPECT_LE(plan.best.num_prefill, 2);
  EXPECT_TRUE(plan.found);
}

TEST(PlanSearchTest, FindsTheFewestThatDo) {
  // 4.6 seconds of prefill each second: more than four prefill workers.
  const Load load = MakeLoad(9, 1000, 4);
  PlanSearch search({.simulation = Cluster(), .most_workers = 64}, &load);
  const Plan plan = search.Find();
  ASSERT_TRUE(plan.found);
  EXPECT_GE(plan.best.result.attainment, 0.9);
  EXPECT_GE(plan.best.num_prefill, 5);
  EXPECT_LE(plan.best.num_workers(), 10);
  EXPECT_EQ(plan.too_few, plan.best.num_workers() - 1);
  // One fewer does not do, however it is split.
  PlanSearch fewer({.simulation = Cluster(), .most_workers = 64}, &load);
  EXPECT_FALSE(fewer.BestSplit(plan.too_few).found);
}

TEST(PlanSearchTest, MoreLoadTakesMoreWorkers) {
  int32_t last = 0;
  for (const double rate : {4.0, 12.0, 36.0}) {
    const Load load = MakeLoad(rate, 500, 100);
    const Plan plan =
        PlanSearch({.simulation = Cluster(), .most_workers = 64}, &load).Find();
    ASSERT_TRUE(plan.found) << rate;
    EXPECT_GT(plan.best.num_workers(), last);
    last = plan.best.num_workers();
  }
}

TEST(PlanSearchTest, SaysWhenNoNumberThatMayBeDoes) {
  const Load load = MakeLoad(8, 1000, 4);
  const Plan plan =
      PlanSearch({.simulation = Cluster(), .most_workers = 3}, &load).Find();
  EXPECT_FALSE(plan.found);
  EXPECT_EQ(plan.best.num_workers(), 3);
  EXPECT_LT(plan.best.result.attainment, 0.9);
  EXPECT_EQ(plan.too_few, 3);
}

TEST(PlanSearchTest, OneWorkerServesALittle) {
  SimulationOptions cluster = Cluster();
  cluster.allow_local_prefill = true;
  const Load load = MakeLoad(0.5, 100, 20);
  const Plan plan =
      PlanSearch({.simulation = cluster, .most_workers = 8}, &load).Find();
  EXPECT_TRUE(plan.found);
  EXPECT_EQ(plan.best.num_prefill, 0);
  EXPECT_EQ(plan.best.num_decode, 1);
}

TEST(SensitivityTest, MoreLoadAndTighterTargetsMeetLess) {
  SimulationOptions cluster = Cluster();
  cluster.num_prefill = 5;
  cluster.num_decode = 1;
  const auto cells = Sensitivity(cluster, {0.5, 2}, {0.25, 1}, [](double f) {
    return absl::StatusOr<Load>(MakeLoad(8 * f, 1000, 4));
  });
  ASSERT_TRUE(cells.ok());
  ASSERT_EQ(cells->size(), 4u);
  EXPECT_EQ((*cells)[0].load_factor, 0.5);
  EXPECT_EQ((*cells)[0].target_factor, 0.25);
  EXPECT_LT((*cells)[0].attainment, (*cells)[1].attainment);
  EXPECT_LT((*cells)[3].attainment, (*cells)[1].attainment);
  EXPECT_GT((*cells)[1].attainment, 0.95);
}

}  // namespace
}  // namespace baton::planner
