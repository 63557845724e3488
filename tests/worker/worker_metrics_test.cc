#include "worker/worker_metrics.h"

#include <string>

#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/idle_engine.h"

namespace baton::worker {
namespace {

using ::testing::HasSubstr;

class WorkerMetricsTest : public ::testing::Test {
 protected:
  test::IdleEngine engine_;
  metrics::Metrics registry_{metrics::Labels()};
  WorkerMetrics metrics_{&registry_, engine_};
};

TEST_F(WorkerMetricsTest, OverlapIsWhatPrefillHidOfATransfer) {
  const auto overlap = [this] {
    return metrics_.transfer_overlap->Collect().histogram;
  };
  metrics_.ObserveSent(absl::Milliseconds(40), absl::Milliseconds(10), 7);
  EXPECT_EQ(overlap().sample_count, 1u);
  EXPECT_DOUBLE_EQ(overlap().sample_sum, 0.75);
  // Prefill was done when it began: nothing was hidden.
  metrics_.ObserveSent(absl::Milliseconds(8), absl::Milliseconds(8), 7);
  EXPECT_EQ(overlap().sample_count, 2u);
  EXPECT_DOUBLE_EQ(overlap().sample_sum, 0.75);
  EXPECT_EQ(overlap().bucket.front().cumulative_count, 1u);
  // Too short for the clock: there is no share of nothing.
  metrics_.ObserveSent(absl::ZeroDuration(), absl::ZeroDuration(), 0);
  EXPECT_EQ(overlap().sample_count, 2u);
  const auto extents = metrics_.transfer_descriptors->Collect().histogram;
  EXPECT_EQ(extents.sample_count, 3u);
  EXPECT_EQ(extents.sample_sum, 14);
}

TEST_F(WorkerMetricsTest, ExpertsAreCountedByStep) {
  EXPECT_THAT(registry_.Text(), HasSubstr("baton_expert_reads_total 0"));
  scheduling::StepResult result;
  result.expert_reads = 12;
  result.expert_rows = 30;
  metrics_.CountStep(result);
  metrics_.CountStep({});
  EXPECT_THAT(registry_.Text(), HasSubstr("baton_steps_total 2"));
  EXPECT_THAT(registry_.Text(), HasSubstr("baton_expert_reads_total 12"));
  EXPECT_THAT(registry_.Text(), HasSubstr("baton_expert_rows_total 30"));
}

TEST_F(WorkerMetricsTest, WasteIsCountedByStageAndThereFromTheStart) {
  for (const char* stage : {"prefill", "decode"}) {
    EXPECT_THAT(registry_.Text(),
                HasSubstr("baton_cancel_wasted_tokens_total{stage=\"" +
                          std::string(stage) + "\"} 0\n"));
  }
  metrics_.CountWasted(/*prompt=*/300, /*output=*/5);
  metrics_.CountWasted(/*prompt=*/0, /*output=*/2);
  EXPECT_THAT(
      registry_.Text(),
      HasSubstr("baton_cancel_wasted_tokens_total{stage=\"prefill\"} 300\n"));
  EXPECT_THAT(
      registry_.Text(),
      HasSubstr("baton_cancel_wasted_tokens_total{stage=\"decode\"} 7\n"));
}

}  // namespace
}  // namespace baton::worker
