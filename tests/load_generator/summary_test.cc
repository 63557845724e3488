#include "load_generator/summary.h"

#include <cmath>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace baton::load_generator {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

// Planned at `at`, first output `ttft` later, then a token each `gap`.
RequestRecord Finished(absl::Duration at, absl::Duration ttft,
                       absl::Duration gap, int32_t tokens) {
  RequestRecord record;
  record.planned_at = record.sent_at = at;
  record.first_at = at + ttft;
  record.last_at = record.first_at + gap * (tokens - 1);
  record.ended_at = record.last_at + absl::Milliseconds(1);
  for (int i = 1; i < tokens; ++i) {
    record.gaps_ms.push_back(
        static_cast<float>(absl::ToDoubleMilliseconds(gap)));
  }
  record.prompt_tokens = 100;
  record.output_tokens = tokens;
  record.end.kind = OutcomeKind::kFinished;
  record.end.output_tokens = tokens;
  return record;
}

RequestRecord Other(OutcomeKind kind, const std::string& error) {
  RequestRecord record;
  record.end.kind = kind;
  record.end.error = error;
  return record;
}

TEST(SummaryTest, PercentilesAreByNearestRank) {
  std::vector<double> values;
  for (int i = 100; i >= 1; --i) values.push_back(i);
  const Percentiles p = PercentilesOf(values);
  EXPECT_EQ(p.p50, 50);
  EXPECT_EQ(p.p90, 90);
  EXPECT_EQ(p.p99, 99);
  EXPECT_EQ(p.max, 100);
  EXPECT_EQ(p.mean, 50.5);
  EXPECT_EQ(PercentilesOf({7}).p99, 7);
  EXPECT_TRUE(std::isnan(PercentilesOf({}).p50));
}

TEST(SummaryTest, RejectedAndFailedCountAsMissed) {
  const Targets targets = {absl::Milliseconds(100), absl::Milliseconds(10)};
  const std::vector<RequestRecord> records = {
      Finished(absl::ZeroDuration(), absl::Milliseconds(100),
               absl::Milliseconds(10), 5),
      // Too late, and too slow.
      Finished(absl::Seconds(1), absl::Milliseconds(101), absl::Milliseconds(1),
               5),
      Finished(absl::Seconds(2), absl::Milliseconds(1), absl::Milliseconds(11),
               5),
      Other(OutcomeKind::kRejected, "full"),
      Other(OutcomeKind::kRejected, "full"),
      Other(OutcomeKind::kFailed, "lost"),
  };
  const Summary summary = Summarize(records, targets, absl::Seconds(4));
  EXPECT_EQ(summary.offered, 6);
  EXPECT_EQ(summary.met, 1);
  EXPECT_DOUBLE_EQ(summary.attainment, 1.0 / 6);
  EXPECT_DOUBLE_EQ(summary.goodput, 0.25);
  EXPECT_DOUBLE_EQ(summary.offered_rate, 1.5);
  EXPECT_EQ(summary.output_tokens, 15);
  EXPECT_EQ(summary.prompt_tokens, 300);
  EXPECT_THAT(summary.errors, ElementsAre(Pair("full", 2), Pair("lost", 1)));
  EXPECT_NEAR(summary.tpot.max, 11, 1e-9);
  EXPECT_NEAR(summary.ttft.max, 101, 1e-9);
  EXPECT_NEAR(summary.itl.p50, 10, 1e-5);
}

TEST(SummaryTest, WithoutTargetsWhateverFinishesCounts) {
  const std::vector<RequestRecord> records = {
      Finished(absl::ZeroDuration(), absl::Seconds(50), absl::Seconds(1), 2),
      Other(OutcomeKind::kTimedOut, "late")};
  EXPECT_EQ(Summarize(records, {}, absl::Seconds(1)).met, 1);
}

TEST(SummaryTest, ATokenAloneHasNoTimePerToken) {
  const RequestRecord one =
      Finished(absl::ZeroDuration(), absl::Seconds(1), absl::ZeroDuration(), 1);
  EXPECT_EQ(one.tpot(), absl::ZeroDuration());
  EXPECT_TRUE(Met(one, {.itl = absl::Milliseconds(1)}));
}

TEST(SummaryTest, LateSendingIsSeenAndCountsAgainstTheServer) {
  RequestRecord record = Finished(absl::Seconds(1), absl::Milliseconds(50),
                                  absl::ZeroDuration(), 2);
  record.sent_at = absl::Seconds(1) + absl::Milliseconds(30);
  const Summary summary = Summarize({record}, {}, absl::Seconds(2));
  EXPECT_NEAR(summary.lag.max, 30, 1e-9);
  EXPECT_NEAR(summary.ttft.max, 50, 1e-9);
}

TEST(SummaryTest, NothingIsNoDivisionByZero) {
  const Summary summary = Summarize({}, {}, absl::ZeroDuration());
  EXPECT_EQ(summary.attainment, 0);
  const std::string json = SummaryJson(summary).dump();
  EXPECT_THAT(json, HasSubstr("\"p99\":null"));
  EXPECT_THAT(SummaryText(summary, {}), HasSubstr("attainment 0.0%"));
}

}  // namespace
}  // namespace baton::load_generator
