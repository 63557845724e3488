#include "worker/attempt_report.h"

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/log.h"

namespace baton::worker {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

constexpr char kRouterTraceparent[] =
    "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

// Collects what is logged while it lives.
class AttemptLines final : public google::LogSink {
 public:
  AttemptLines() { google::AddLogSink(this); }
  ~AttemptLines() override { google::RemoveLogSink(this); }
  void send(google::LogSeverity severity, const char*, const char*, int,
            const google::LogMessageTime&, const char* message,
            size_t length) override {
    lines.emplace_back(message, length);
    severities.push_back(severity);
  }
  std::vector<std::string> lines;
  std::vector<google::LogSeverity> severities;
};

v1::SequenceSpec TracedSpec() {
  v1::SequenceSpec spec;
  spec.set_request_id("r-1");
  spec.set_traceparent(kRouterTraceparent);
  return spec;
}

std::string SpanOf(const char* part, uint64_t attempt) {
  return SpanIdHex(
      PartSpan(*ParseTraceparent(kRouterTraceparent), part, attempt).span);
}

TEST(AttemptReportTest, APrefillWithItsHandoff) {
  v1::Outcome outcome;
  outcome.set_ok(true);
  outcome.set_cached_tokens(16);
  outcome.set_queue_seconds(0.001);
  outcome.set_prefill_seconds(0.02);
  outcome.set_kv_transfer_seconds(0.015);
  outcome.set_kv_transfer_exposed_seconds(0.0005);
  outcome.set_kv_transfer_bytes(4096);
  const AttemptLines log;
  LogAttemptEnd("prefill", MakeAttemptName(TracedSpec(), 7),
                {.outcome = outcome,
                 .tokens = 100,
                 .sampled = 1,
                 .total = absl::Milliseconds(22)});
  EXPECT_THAT(log.lines,
              ElementsAre("prefill ended request=r-1 "
                          "trace=4bf92f3577b34da6a3ce929d0e0e4736 span=" +
                          SpanOf("prefill", 7) +
                          " parent=00f067aa0ba902b7 transfer_span=" +
                          SpanOf("transfer", 7) +
                          " attempt=7 outcome=ok tokens=100 cached_tokens=16 "
                          "output_tokens=1 queue_ms=1.000 prefill_ms=20.000 "
                          "kv_transfer_ms=15.000 kv_transfer_exposed_ms=0.500 "
                          "kv_transfer_bytes=4096 total_ms=22.000"));
  EXPECT_THAT(log.severities, ElementsAre(google::GLOG_INFO));
}

TEST(AttemptReportTest, ADecodeOfWhatLanded) {
  v1::Outcome outcome;
  outcome.set_ok(true);
  outcome.set_kv_transfer_bytes(4096);
  outcome.set_kv_transfer_seconds(0.01);
  outcome.set_decode_queue_seconds(0.0001);
  outcome.set_first_step_seconds(0.005);
  const AttemptLines log;
  LogAttemptEnd("decode", MakeAttemptName(TracedSpec(), 7),
                {.outcome = outcome,
                 .tokens = 100,
                 .sampled = 20,
                 .total = absl::Milliseconds(150),
                 .landed = absl::Milliseconds(25)});
  ASSERT_EQ(log.lines.size(), 1u);
  EXPECT_THAT(log.lines[0],
              AllOf(StartsWith("decode ended request=r-1 "),
                    HasSubstr(" span=" + SpanOf("decode", 7)),
                    // The same as on the other side.
                    HasSubstr(" transfer_span=" + SpanOf("transfer", 7)),
                    EndsWith(" landed_ms=25.000 decode_queue_ms=0.100 "
                             "first_step_ms=5.000 total_ms=150.000")));
}

TEST(AttemptReportTest, AFailureIsAWarningAndACancelIsNot) {
  const AttemptLines log;
  v1::SequenceSpec spec = TracedSpec();
  spec.clear_traceparent();
  LogAttemptEnd("decode", MakeAttemptName(spec, 8),
                {.outcome = v1::Outcome(), .error = "the router is silent"});
  LogAttemptEnd("decode", MakeAttemptName(spec, 9), {.outcome = v1::Outcome()});
  ASSERT_EQ(log.lines.size(), 2u);
  EXPECT_THAT(log.lines[0], AllOf(HasSubstr(" outcome=failed error=\"the "
                                            "router is silent\" "),
                                  Not(HasSubstr("trace="))));
  EXPECT_THAT(log.lines[1],
              AllOf(HasSubstr(" outcome=cancelled "), Not(HasSubstr("error"))));
  EXPECT_THAT(log.severities,
              ElementsAre(google::GLOG_WARNING, google::GLOG_INFO));
}

TEST(AttemptReportTest, APreemptionIsNoFailure) {
  const AttemptLines log;
  v1::Outcome outcome;
  outcome.set_failure(v1::FAILURE_KIND_PREEMPTED);
  LogAttemptEnd("decode", MakeAttemptName(TracedSpec(), 8),
                {.outcome = outcome, .error = "no blocks"});
  ASSERT_EQ(log.lines.size(), 1u);
  EXPECT_THAT(log.lines[0],
              HasSubstr(" outcome=preempted error=\"no blocks\" "));
  EXPECT_THAT(log.severities, ElementsAre(google::GLOG_INFO));
}

TEST(AttemptReportTest, TheHandoffIsToldWhoseKvItMoves) {
  const AttemptName name = MakeAttemptName(TracedSpec(), 1);
  EXPECT_EQ(name.Owner().request, "r-1");
  EXPECT_EQ(name.Owner().trace_id, "4bf92f3577b34da6a3ce929d0e0e4736");
  v1::SequenceSpec spec = TracedSpec();
  spec.set_traceparent("00-none");
  EXPECT_EQ(MakeAttemptName(spec, 1).Owner().trace_id, "");
}

}  // namespace
}  // namespace baton::worker
