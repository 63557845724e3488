#include "router/request_trace.h"

#include <gtest/gtest.h>

namespace baton::router {
namespace {

const absl::Time kTraceStart = absl::UnixEpoch() + absl::Seconds(50);

RequestTrace Trace() {
  RequestTrace trace;
  trace.received_at = kTraceStart;
  trace.sent_at = kTraceStart + absl::Seconds(1);
  trace.prefill_worker = "p";
  trace.decode_worker = "d";
  trace.first_token_sent_at = trace.sent_at;
  trace.first_event_at = kTraceStart + absl::Seconds(10);
  return trace;
}

v1::PromptReport Computed(double queue, double prefill) {
  v1::PromptReport report;
  report.set_queue_seconds(queue);
  report.set_prefill_seconds(prefill);
  return report;
}

double Sum(const v1::Timing& t) {
  return t.route_queue_seconds() + t.prefill_queue_seconds() +
         t.prefill_seconds() + t.first_token_return_seconds();
}

TEST(RequestTraceTest, StagesAddUpToTtft) {
  RequestTrace trace = Trace();
  trace.AddPromptReport(0, Computed(2, 4));
  const v1::Timing timing =
      MakeTiming(trace, kTraceStart + absl::Seconds(20), /*retries=*/3);
  EXPECT_EQ(timing.ttft_seconds(), 10);
  EXPECT_EQ(timing.route_queue_seconds(), 1);
  EXPECT_EQ(timing.prefill_queue_seconds(), 2);
  EXPECT_EQ(timing.prefill_seconds(), 4);
  EXPECT_EQ(timing.first_token_return_seconds(), 3);
  EXPECT_EQ(Sum(timing), timing.ttft_seconds());
  EXPECT_EQ(timing.e2e_seconds(), 20);
  EXPECT_EQ(timing.retries(), 3u);
}

TEST(RequestTraceTest, WorkersCannotReportMoreThanThereWas) {
  RequestTrace trace = Trace();
  trace.AddPromptReport(0, Computed(-5, 1e9));
  const v1::Timing timing =
      MakeTiming(trace, kTraceStart + absl::Seconds(20), 0);
  EXPECT_EQ(timing.prefill_queue_seconds(), 0);
  EXPECT_EQ(timing.prefill_seconds(), 9);
  EXPECT_EQ(timing.first_token_return_seconds(), 0);
  EXPECT_EQ(Sum(timing), timing.ttft_seconds());
}

TEST(RequestTraceTest, LaterAttemptsDoNotChangeHowTtftIsSplit) {
  RequestTrace trace = Trace();
  trace.AddPromptReport(0, Computed(2, 4));
  // Of the attempt that went on behind three tokens; and the same token again.
  trace.AddPromptReport(3, Computed(7, 7));
  trace.AddPromptReport(0, Computed(7, 7));
  v1::Outcome later;
  later.set_ok(true);
  later.set_queue_seconds(7);
  later.set_prefill_seconds(7);
  later.set_kv_transfer_bytes(5);
  later.set_kv_transfer_seconds(0.5);
  trace.AddOutcome(/*by_decode=*/false, later);
  const v1::Timing timing =
      MakeTiming(trace, kTraceStart + absl::Seconds(20), 0);
  EXPECT_EQ(timing.prefill_seconds(), 4);
  EXPECT_EQ(timing.kv_transfer_bytes(), 5u);
  EXPECT_EQ(timing.kv_transfer_seconds(), 0.5);
}

TEST(RequestTraceTest, WithoutATokenThereIsNoTtft) {
  RequestTrace trace;
  trace.received_at = kTraceStart;
  const v1::Timing timing =
      MakeTiming(trace, kTraceStart + absl::Seconds(2), 0);
  EXPECT_EQ(timing.ttft_seconds(), 0);
  EXPECT_EQ(timing.e2e_seconds(), 2);
}

}  // namespace
}  // namespace baton::router
