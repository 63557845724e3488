#include "router/router_metrics.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace baton::router {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::string Bucket(const std::string& name, const std::string& edge,
                   int count) {
  return absl::StrCat(name, "_bucket{le=\"", edge, "\"} ", count, "\n");
}

TEST(RouterMetricsTest, TargetsOfTheOperatorAreEdges) {
  ClassTargets targets;
  targets.interactive = {.ttft = absl::Milliseconds(333),
                         .itl = absl::Milliseconds(27)};
  targets.batch = {.ttft = absl::Seconds(33), .itl = absl::ZeroDuration()};
  metrics::Metrics registry{metrics::Labels()};
  RouterMetrics metrics(&registry, targets);
  metrics.FirstEvent(absl::Milliseconds(300));
  metrics.FirstEvent(absl::Milliseconds(333));
  metrics.FirstEvent(absl::Milliseconds(334));
  metrics.LaterEvent(absl::Milliseconds(27));
  metrics.LaterEvent(absl::Milliseconds(28));
  const std::string text = registry.Text();
  const std::string ttft = "baton_time_to_first_token_seconds";
  EXPECT_THAT(text, HasSubstr(Bucket(ttft, "0.333", 2)));
  EXPECT_THAT(text, HasSubstr(Bucket(ttft, "33", 3)));
  const std::string itl = "baton_inter_token_latency_seconds";
  EXPECT_THAT(text, HasSubstr(Bucket(itl, "0.027", 1)));
  EXPECT_THAT(text,
              HasSubstr(Bucket("baton_request_time_per_output_token_seconds",
                               "0.027", 0)));
  EXPECT_THAT(text, HasSubstr(Bucket("baton_router_predicted_ttft_seconds",
                                     "0.333", 0)));
  EXPECT_THAT(text, HasSubstr(Bucket("baton_router_predicted_tpot_seconds",
                                     "0.027", 0)));
  // Those of a class without a target are not.
  EXPECT_THAT(text, Not(HasSubstr(absl::StrCat(itl, "_bucket{le=\"0\"}"))));
  // What they are beside.
  EXPECT_THAT(text, HasSubstr(Bucket(ttft, "0.25", 0)));
  EXPECT_THAT(text, HasSubstr(Bucket(ttft, "0.5", 3)));
}

TEST(RouterMetricsTest, ATargetThatIsAnEdgeAnywayIsThereOnce) {
  ClassTargets targets;
  targets.interactive.ttft = absl::Milliseconds(500);
  targets.batch.ttft = absl::Milliseconds(500);
  metrics::Metrics registry{metrics::Labels()};
  RouterMetrics metrics(&registry, targets);
  const std::string text = registry.Text();
  const std::string edge =
      Bucket("baton_time_to_first_token_seconds", "0.5", 0);
  const size_t first = text.find(edge);
  ASSERT_NE(first, std::string::npos);
  EXPECT_EQ(text.find(edge, first + 1), std::string::npos);
}

TEST(RouterMetricsTest, WhatPlacementExpectedIsSeenBesideTheError) {
  metrics::Metrics registry{metrics::Labels()};
  RouterMetrics metrics(&registry);
  metrics.PredictedTtft(absl::Milliseconds(300), absl::Milliseconds(400));
  metrics.PredictedTpot(absl::Milliseconds(30), absl::Milliseconds(20));
  // Policies that expect nothing; answers of one token.
  metrics.PredictedTtft(absl::ZeroDuration(), absl::Milliseconds(400));
  metrics.PredictedTpot(absl::ZeroDuration(), absl::Milliseconds(20));
  metrics.PredictedTpot(absl::Milliseconds(30), absl::ZeroDuration());
  const std::string text = registry.Text();
  EXPECT_THAT(text, HasSubstr("baton_router_predicted_ttft_seconds_sum 0.3\n"));
  EXPECT_THAT(text, HasSubstr("baton_router_predicted_ttft_seconds_count 1\n"));
  EXPECT_THAT(text, HasSubstr("baton_placement_ttft_error_ratio_sum 0.25\n"));
  EXPECT_THAT(text, HasSubstr("baton_placement_ttft_error_ratio_count 1\n"));
  EXPECT_THAT(text,
              HasSubstr("baton_router_predicted_tpot_seconds_sum 0.03\n"));
  EXPECT_THAT(text, HasSubstr("baton_router_predicted_tpot_seconds_count 1\n"));
  EXPECT_THAT(text, HasSubstr("baton_placement_tpot_error_ratio_sum 0.5\n"));
  EXPECT_THAT(text, HasSubstr("baton_placement_tpot_error_ratio_count 1\n"));
}

TEST(RouterMetricsTest, ADecisionIsTimedByItsPhases) {
  metrics::Metrics registry{metrics::Labels()};
  RouterMetrics metrics(&registry);
  metrics.Placed({}, {.prefix = absl::Microseconds(250),
                      .policy = absl::Microseconds(750)});
  const std::string text = registry.Text();
  const std::string sum = "baton_router_decision_seconds_sum";
  EXPECT_THAT(text, HasSubstr(sum + "{phase=\"prefix\"} 0.00025\n"));
  EXPECT_THAT(text, HasSubstr(sum + "{phase=\"policy\"} 0.00075\n"));
  EXPECT_THAT(text, HasSubstr(sum + "{phase=\"all\"} 0.001\n"));
}

}  // namespace
}  // namespace baton::router
