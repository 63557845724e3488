// The line that the router logs when a request is over.
#include "router/request_report.h"

#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "common/log.h"
#include "common/metrics/metrics.h"
#include "router/text/tokenizer.h"

namespace baton::router {
namespace {

using scheduling::FinishReason;
using testing::AllOf;
using testing::ElementsAre;
using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

// Collects what is logged while it lives.
class ReportLines final : public google::LogSink {
 public:
  ReportLines() { google::AddLogSink(this); }
  ~ReportLines() override { google::RemoveLogSink(this); }
  void send(google::LogSeverity, const char*, const char*, int,
            const google::LogMessageTime&, const char* message,
            size_t length) override {
    lines.emplace_back(message, length);
  }
  std::vector<std::string> lines;
};

class RequestReportTest : public testing::Test {
 protected:
  RequestReportTest() : metrics_registry_({}), metrics_(&metrics_registry_) {
    auto tokenizer =
        Tokenizer::Load(absl::StrCat(BATON_SOURCE_DIR, "/models/stories"));
    CHECK(tokenizer.ok()) << tokenizer.status();
    tokenizer_ = *std::move(tokenizer);
    incoming_ = std::make_unique<IncomingRequest>();
    incoming_->spec.id = "r-1";
    incoming_->spec.prompt = {5, 6, 7};
    incoming_->spec.traceparent =
        "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    incoming_->received_at = absl::UnixEpoch() + absl::Seconds(50);
    incoming_->deadline = absl::InfiniteFuture();
  }

  // Call once, after incoming_ is as the test wants it.
  RequestRecord& Record() {
    record_ =
        std::make_unique<RequestRecord>(std::move(incoming_), 3, *tokenizer_);
    return *record_;
  }

  // A request that got five tokens: the first after 10 ms, the last 40 ms
  // later.
  RequestRecord& Served() {
    RequestRecord& record = Record();
    RequestTrace& trace = record.trace;
    trace.prefill_worker = "p 0";
    trace.decode_worker = "d0";
    trace.first_token_sent_at = trace.received_at + absl::Milliseconds(1);
    trace.first_event_at = trace.received_at + absl::Milliseconds(10);
    trace.last_event_at = trace.first_event_at + absl::Milliseconds(40);
    trace.longest_gap = absl::Milliseconds(15);
    v1::PromptReport prompt;
    prompt.set_queue_seconds(0.002);
    prompt.set_prefill_seconds(0.004);
    prompt.set_cached_tokens(2);
    trace.prompt = prompt;
    v1::Outcome prefilled;
    prefilled.set_kv_transfer_bytes(4096);
    prefilled.set_kv_transfer_seconds(0.0035);
    prefilled.set_kv_transfer_exposed_seconds(0.0005);
    trace.prefill_outcome = prefilled;
    v1::Outcome decoded;
    decoded.set_decode_queue_seconds(0.00025);
    decoded.set_first_step_seconds(0.006);
    trace.decode_outcome = decoded;
    record.output_tokens = 5;
    return record;
  }

  std::string Line(const RequestRecord& record, FinishReason reason,
                   const absl::Status& status) {
    const ReportLines log;
    ReportEnd(record, "stories", reason, status,
              MakeTiming(record.trace,
                         record.trace.received_at + absl::Milliseconds(51), 1),
              &metrics_);
    EXPECT_EQ(log.lines.size(), 1u);
    return log.lines.empty() ? "" : log.lines[0];
  }

  metrics::Metrics metrics_registry_;
  RouterMetrics metrics_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::unique_ptr<IncomingRequest> incoming_;
  std::unique_ptr<RequestRecord> record_;
};

TEST_F(RequestReportTest, OneLineHasItAll) {
  incoming_->answer.parent_span = 0xb7ad6b7169203331;
  EXPECT_EQ(
      Line(Served(), FinishReason::kLength, absl::OkStatus()),
      "request ended request=r-1 trace=4bf92f3577b34da6a3ce929d0e0e4736 "
      "span=00f067aa0ba902b7 parent=b7ad6b7169203331 class=interactive "
      "model=stories outcome=length prompt_tokens=3 cached_tokens=2 "
      "output_tokens=5 ttft_ms=10.000 route_queue_ms=1.000 "
      "prefill_queue_ms=2.000 prefill_ms=4.000 first_token_return_ms=3.000 "
      "kv_transfer_ms=3.500 kv_transfer_exposed_ms=0.500 "
      "kv_transfer_bytes=4096 decode_queue_ms=0.250 first_step_ms=6.000 "
      "e2e_ms=51.000 tpot_ms=10.000 longest_gap_ms=15.000 "
      "prefill_worker=\"p 0\" decode_worker=d0 retries=1");
}

TEST_F(RequestReportTest, TargetsAreMetOrNot) {
  incoming_->answer.ttft_target = absl::Milliseconds(10);
  incoming_->answer.itl_target = absl::Milliseconds(9);
  incoming_->answer.request_class = RequestClass::kBatch;
  incoming_->answer.priority = -3;
  incoming_->answer.user = "a user";
  EXPECT_THAT(Line(Served(), FinishReason::kStop, absl::OkStatus()),
              AllOf(HasSubstr(" user=\"a user\" class=batch priority=-3 "),
                    HasSubstr(" ttft_target_ms=10.000 ttft_met=true "
                              "itl_target_ms=9.000 itl_met=false ")));
}

TEST_F(RequestReportTest, AnErrorIsNamedAndCannotForgeALine) {
  incoming_->spec.id = "r\" outcome=stop";
  incoming_->spec.traceparent = "";
  incoming_->answer.ttft_target = absl::Milliseconds(10);
  const std::string line =
      Line(Record(), FinishReason::kError,
           absl::UnavailableError("d0: torn\nrequest ended request=x"));
  EXPECT_THAT(line,
              StartsWith("request ended request=\"r\\\" outcome=stop\" class"));
  EXPECT_THAT(line, HasSubstr(" outcome=error code=UNAVAILABLE "
                              "error=\"d0: torn\\nrequest ended request=x\" "));
  EXPECT_THAT(line, HasSubstr(" ttft_target_ms=10.000 ttft_met=false "));
  EXPECT_THAT(line, Not(HasSubstr("\n")));
  EXPECT_THAT(line, Not(HasSubstr("trace=")));
  EXPECT_THAT(line, Not(HasSubstr(" ttft_ms=")));
  EXPECT_THAT(line, EndsWith(" retries=1"));
}

TEST_F(RequestReportTest, NothingIsPutTogetherForALogThatIsOff) {
  FLAGS_minloglevel = google::GLOG_WARNING;
  const ReportLines log;
  ReportEnd(Record(), "stories", FinishReason::kStop, absl::OkStatus(), {},
            &metrics_);
  FLAGS_minloglevel = google::GLOG_INFO;
  EXPECT_THAT(log.lines, ElementsAre());
}

TEST_F(RequestReportTest, ARejectionMissesItsTargets) {
  JudgeRejection({}, &metrics_);  // had none
  EXPECT_THAT(metrics_registry_.Text(),
              Not(testing::ContainsRegex("target[^}]*\\} [1-9]")));
  AnswerOptions answer;
  answer.itl_target = absl::Milliseconds(20);
  JudgeRejection(answer, &metrics_);
  EXPECT_THAT(metrics_registry_.Text(),
              testing::ContainsRegex("baton_request_targets_total\\{[^}]*"
                                     "met=\"no\"[^}]*\\} 1"));
  EXPECT_THAT(metrics_registry_.Text(),
              testing::ContainsRegex("latency_target_total\\{[^}]*"
                                     "met=\"no\",target=\"itl\"\\} 1"));
  EXPECT_THAT(metrics_registry_.Text(),
              Not(testing::ContainsRegex("target=\"ttft\"[^}]*\\} 1")));
}

TEST(ReportRejectionTest, NamesTheRequestAndTheReason) {
  const ReportLines log;
  ReportRejection(
      {.id = "r 2",
       .traceparent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
       .tenant = "team-a"},
      "queue_full", absl::ResourceExhaustedError("overloaded"));
  EXPECT_THAT(log.lines,
              ElementsAre("request rejected request=\"r 2\" "
                          "trace=4bf92f3577b34da6a3ce929d0e0e4736 "
                          "span=00f067aa0ba902b7 tenant=team-a "
                          "reason=queue_full code=RESOURCE_EXHAUSTED "
                          "error=overloaded"));
}

TEST(ReportRejectionTest, ManyInASecondAreCounted) {
  const ReportLines log;
  for (int i = 0; i < 10'000; ++i) {
    ReportRejection({.id = "r"}, "invalid", absl::InvalidArgumentError("no"));
  }
  EXPECT_LT(log.lines.size(), 1000u);
  EXPECT_GT(log.lines.size(), 0u);
}

}  // namespace
}  // namespace baton::router
