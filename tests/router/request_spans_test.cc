// The spans of a request, from what the router knows when it ends.
#include "router/request_spans.h"

#include <limits>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "router/request_record.h"
#include "router/text/tokenizer.h"

namespace baton::router {
namespace {

using scheduling::AttemptId;
using scheduling::FinishReason;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using tracing::Attribute;
using tracing::Span;

constexpr char kTraceparent[] =
    "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
// The record's clock is not the one of people.
constexpr absl::Duration kWall = absl::Hours(400'000);

absl::Duration Ms(double ms) { return absl::Milliseconds(ms); }

class RequestSpansTest : public testing::Test {
 protected:
  RequestSpansTest() {
    auto tokenizer =
        Tokenizer::Load(absl::StrCat(BATON_SOURCE_DIR, "/models/stories"));
    CHECK(tokenizer.ok()) << tokenizer.status();
    tokenizer_ = *std::move(tokenizer);
    incoming_ = std::make_unique<IncomingRequest>();
    incoming_->spec.id = "r-1";
    incoming_->spec.prompt = {5, 6, 7};
    incoming_->spec.traceparent = kTraceparent;
    incoming_->received_at = start_;
    incoming_->deadline = absl::InfiniteFuture();
  }

  // Call once, after incoming_ is as the test wants it.
  RequestRecord& Record() {
    record_ =
        std::make_unique<RequestRecord>(std::move(incoming_), 3, *tokenizer_);
    record_->spans = std::make_unique<AttemptSpans>();
    return *record_;
  }

  static v1::Outcome Prefilled() {
    v1::Outcome outcome;
    outcome.set_ok(true);
    outcome.set_queue_seconds(0.002);
    outcome.set_prefill_seconds(0.004);
    outcome.set_cached_tokens(2);
    outcome.set_kv_transfer_bytes(4096);
    outcome.set_kv_transfer_seconds(0.0035);
    outcome.set_kv_transfer_exposed_seconds(0.0005);
    return outcome;
  }
  static v1::Outcome Decoded() {
    v1::Outcome outcome;
    outcome.set_ok(true);
    outcome.set_decode_queue_seconds(0.00025);
    outcome.set_first_step_seconds(0.006);
    return outcome;
  }

  void Begin(RequestRecord& record, uint64_t attempt, absl::Duration at,
             const std::string& prefill = "p0") {
    record.attempt = AttemptId{attempt};
    record.trace.sent_at = start_ + at;
    record.trace.prefill_worker = prefill;
    record.trace.decode_worker = "d0";
    record.spans->Begin({.id = AttemptId{attempt},
                         .waiting_since = record.waiting_since,
                         .sent_at = start_ + at,
                         .prefill_worker = prefill,
                         .decode_worker = "d0",
                         .decision = "prefill-decode",
                         .reason = "least_load"});
  }

  // Five tokens: the first 10 ms after the request came, the last 40 ms later.
  void Answer(RequestRecord& record, uint64_t attempt, absl::Duration first) {
    record.spans->TokenCame(0, start_ + first);
    record.trace.first_token_sent_at = record.trace.sent_at;
    record.trace.first_event_at = start_ + first;
    record.trace.last_event_at = start_ + first + Ms(40);
    record.output_tokens = 5;
  }

  std::vector<Span> Spans(const RequestRecord& record,
                          FinishReason reason = FinishReason::kLength,
                          const absl::Status& status = absl::OkStatus()) {
    const absl::Time now = start_ + Ms(60);
    return MakeSpans(record, {.model = "stories",
                              .reason = reason,
                              .status = status,
                              .timing = MakeTiming(record.trace, now, 0),
                              .now = now,
                              .wall_now = now + kWall});
  }

  const absl::Time start_ = absl::UnixEpoch() + absl::Seconds(50);
  std::unique_ptr<Tokenizer> tokenizer_;
  std::unique_ptr<IncomingRequest> incoming_;
  std::unique_ptr<RequestRecord> record_;
};

std::vector<std::string> NamesOf(const std::vector<Span>& spans) {
  std::vector<std::string> names;
  for (const Span& span : spans) names.push_back(span.name);
  return names;
}

const Span& Find(const std::vector<Span>& spans, const std::string& name) {
  for (const Span& span : spans) {
    if (span.name == name) return span;
  }
  ADD_FAILURE() << "no span " << name;
  return spans.front();
}

// As text; empty when there is none.
std::string Value(const Span& span, const std::string& key) {
  for (const Attribute& attribute : span.attributes) {
    if (attribute.key != key) continue;
    if (const auto* text = std::get_if<std::string>(&attribute.value)) {
      return *text;
    }
    if (const auto* whole = std::get_if<int64_t>(&attribute.value)) {
      return absl::StrCat(*whole);
    }
    if (const auto* real = std::get_if<double>(&attribute.value)) {
      return absl::StrCat(*real);
    }
    std::string all;
    for (const auto& one :
         std::get<std::vector<std::string>>(attribute.value)) {
      absl::StrAppend(&all, "[", one, "]");
    }
    return all;
  }
  return "";
}

absl::Duration Length(const Span& span) { return span.end - span.start; }

TEST_F(RequestSpansTest, ARequestAndItsParts) {
  incoming_->answer.parent_span = 0xb7ad6b7169203331;
  incoming_->answer.chat = true;
  incoming_->spec.stop.max_output_tokens = 5;
  RequestRecord& record = Record();
  Begin(record, 7, Ms(1));
  Answer(record, 7, Ms(10));
  v1::PromptReport prompt;
  prompt.set_queue_seconds(0.002);
  prompt.set_prefill_seconds(0.004);
  prompt.set_cached_tokens(2);
  record.trace.AddPromptReport(0, prompt);
  record.trace.AddOutcome(/*by_decode=*/false, Prefilled());
  record.spans->AddOutcome(AttemptId{7}, false, Prefilled());
  record.spans->AddOutcome(AttemptId{7}, true, Decoded());
  const std::vector<Span> spans = Spans(record);
  EXPECT_THAT(
      NamesOf(spans),
      ElementsAre("chat stories", "route queue", "prefill queue", "prefill",
                  "first token return", "kv transfer", "decode"));

  const Span& request = spans[0];
  EXPECT_EQ(request.kind, Span::Kind::kServer);
  EXPECT_EQ(FormatTraceparent(request.context), kTraceparent);
  EXPECT_EQ(request.parent, 0xb7ad6b7169203331);
  EXPECT_EQ(request.start, start_ + kWall);
  EXPECT_EQ(Length(request), Ms(60));
  EXPECT_FALSE(request.failed);
  const std::map<std::string, std::string> expected = {
      {"gen_ai.operation.name", "chat"},
      {"gen_ai.provider.name", "baton"},
      {"gen_ai.request.model", "stories"},
      {"gen_ai.response.model", "stories"},
      {"gen_ai.response.id", "r-1"},
      {"gen_ai.request.max_tokens", "5"},
      {"gen_ai.usage.input_tokens", "3"},
      {"gen_ai.usage.output_tokens", "5"},
      {"gen_ai.usage.cache_read.input_tokens", "2"},
      {"gen_ai.response.finish_reasons", "[length]"},
      {"gen_ai.response.time_to_first_chunk", "0.01"},
      {"baton.prefill.worker", "p0"},
      {"baton.decode.worker", "d0"},
      {"error.type", ""}};
  for (const auto& [key, value] : expected) {
    EXPECT_EQ(Value(request, key), value) << key;
  }
  ASSERT_THAT(request.events, SizeIs(1));
  EXPECT_EQ(request.events[0].name, "first token");
  EXPECT_EQ(request.events[0].at, start_ + kWall + Ms(10));

  std::set<uint64_t> ids = {request.context.span};
  for (size_t i = 1; i < spans.size(); ++i) {
    EXPECT_EQ(spans[i].parent, request.context.span) << spans[i].name;
    EXPECT_EQ(TraceIdHex(spans[i].context), TraceIdHex(request.context));
    EXPECT_TRUE(ids.insert(spans[i].context.span).second) << spans[i].name;
    EXPECT_GE(spans[i].start, request.start) << spans[i].name;
    EXPECT_LE(spans[i].end, request.end) << spans[i].name;
    EXPECT_EQ(Value(spans[i], "baton.attempt"), "7") << spans[i].name;
  }
  // As the workers log them.
  for (const char* part : {"prefill", "decode"}) {
    EXPECT_EQ(Find(spans, part).context.span,
              PartSpan(request.context, part, 7).span);
  }
  EXPECT_EQ(Find(spans, "kv transfer").context.span,
            PartSpan(request.context, "transfer", 7).span);
}

TEST_F(RequestSpansTest, TheStagesFollowEachOtherAndAddUpToTtft) {
  RequestRecord& record = Record();
  Begin(record, 7, Ms(1));
  Answer(record, 7, Ms(10));
  record.spans->AddOutcome(AttemptId{7}, false, Prefilled());
  record.spans->AddOutcome(AttemptId{7}, true, Decoded());
  const std::vector<Span> spans = Spans(record);
  absl::Time at = spans[0].start;
  for (const char* stage :
       {"route queue", "prefill queue", "prefill", "first token return"}) {
    EXPECT_EQ(Find(spans, stage).start, at) << stage;
    at = Find(spans, stage).end;
  }
  EXPECT_EQ(at, spans[0].start + Ms(10));
  EXPECT_EQ(Length(Find(spans, "route queue")), Ms(1));
  EXPECT_EQ(Length(Find(spans, "prefill queue")), Ms(2));
  EXPECT_EQ(Length(Find(spans, "prefill")), Ms(4));
  EXPECT_EQ(Length(Find(spans, "first token return")), Ms(3));
  // The last 0.5 ms of the transfer came after the prompt was computed.
  const Span& transfer = Find(spans, "kv transfer");
  EXPECT_EQ(Length(transfer), Ms(3.5));
  EXPECT_EQ(transfer.end, Find(spans, "prefill").end + Ms(0.5));
  EXPECT_EQ(Value(transfer, "baton.kv_transfer.bytes"), "4096");
  EXPECT_EQ(Find(spans, "decode").start, transfer.end);
  EXPECT_EQ(Find(spans, "decode").end, spans[0].start + Ms(50));
}

TEST_F(RequestSpansTest, WorkersCannotReportMoreThanThereWas) {
  RequestRecord& record = Record();
  Begin(record, 7, Ms(1));
  Answer(record, 7, Ms(10));
  v1::Outcome wrong = Prefilled();
  wrong.set_queue_seconds(-3);
  wrong.set_prefill_seconds(1e9);
  wrong.set_kv_transfer_seconds(std::numeric_limits<double>::quiet_NaN());
  wrong.set_kv_transfer_exposed_seconds(1e9);
  record.spans->AddOutcome(AttemptId{7}, false, wrong);
  record.spans->AddOutcome(AttemptId{7}, true, Decoded());
  for (const Span& span : Spans(record)) {
    EXPECT_GE(span.start, start_ + kWall) << span.name;
    EXPECT_LE(span.start, span.end) << span.name;
    EXPECT_LE(span.end, start_ + kWall + Ms(60)) << span.name;
  }
}

TEST_F(RequestSpansTest, AnAttemptThatFailsIsASpanAndAnEvent) {
  RequestRecord& record = Record();
  Begin(record, 7, Ms(1));
  record.spans->Failed("worker_lost", "p0: gone", start_ + Ms(5));
  record.attempt.reset();
  record.waiting_since = start_ + Ms(5);
  Begin(record, 8, Ms(6), "p1");
  Answer(record, 8, Ms(10));
  // A report that comes late.
  record.spans->AddOutcome(AttemptId{7}, false, Prefilled());
  const std::vector<Span> spans = Spans(record);
  EXPECT_THAT(
      NamesOf(spans),
      ElementsAre("text_completion stories", "route queue", "failed attempt",
                  "route queue", "first token return", "decode"));
  const Span& failed = spans[2];
  EXPECT_TRUE(failed.failed);
  EXPECT_EQ(failed.error, "p0: gone");
  EXPECT_EQ(Value(failed, "error.type"), "worker_lost");
  EXPECT_EQ(Value(failed, "baton.prefill.worker"), "p0");
  // Still without a gap.
  EXPECT_EQ(failed.start, spans[1].end);
  EXPECT_EQ(spans[3].start, failed.end);
  EXPECT_EQ(spans[4].start, spans[3].end);
  EXPECT_NE(spans[1].context.span, spans[3].context.span);
  ASSERT_THAT(spans[0].events, SizeIs(2));
  EXPECT_EQ(spans[0].events[1].name, "retry");
  EXPECT_EQ(spans[0].events[1].at, start_ + kWall + Ms(5));
  EXPECT_FALSE(spans[0].failed);
}

TEST_F(RequestSpansTest, LocalPrefillIsTheDecodeWorkers) {
  RequestRecord& record = Record();
  Begin(record, 7, Ms(1), /*prefill=*/"");
  Answer(record, 7, Ms(10));
  v1::Outcome outcome = Decoded();
  outcome.set_queue_seconds(0.002);
  outcome.set_prefill_seconds(0.004);
  record.spans->AddOutcome(AttemptId{7}, true, outcome);
  const std::vector<Span> spans = Spans(record);
  EXPECT_THAT(
      NamesOf(spans),
      ElementsAre("text_completion stories", "route queue", "prefill queue",
                  "prefill", "first token return", "decode"));
  EXPECT_EQ(Value(Find(spans, "prefill"), "baton.prefill.worker"), "d0");
}

TEST_F(RequestSpansTest, ARequestThatNeverLeftTheQueue) {
  RequestRecord& record = Record();
  const std::vector<Span> spans =
      Spans(record, FinishReason::kError,
            absl::DeadlineExceededError("the request's deadline passed"));
  EXPECT_THAT(NamesOf(spans),
              ElementsAre("text_completion stories", "route queue"));
  EXPECT_TRUE(spans[0].failed);
  EXPECT_EQ(spans[0].error, "the request's deadline passed");
  EXPECT_EQ(Value(spans[0], "error.type"), "DEADLINE_EXCEEDED");
  EXPECT_EQ(Length(spans[1]), Ms(60));
}

TEST_F(RequestSpansTest, AClientThatLeavesIsNoFailure) {
  const std::vector<Span> spans =
      Spans(Record(), FinishReason::kCancelled, absl::CancelledError("gone"));
  EXPECT_FALSE(spans[0].failed);
  EXPECT_EQ(Value(spans[0], "error.type"), "CANCELLED");
  EXPECT_EQ(Value(spans[0], "gen_ai.response.finish_reasons"), "[cancelled]");
}

TEST_F(RequestSpansTest, AttemptsAreBounded) {
  RequestRecord& record = Record();
  for (uint64_t i = 1; i <= 100; ++i) {
    Begin(record, i, Ms(1));
    record.spans->Failed("refused", "busy", start_ + Ms(2));
  }
  EXPECT_THAT(record.spans->attempts(), SizeIs(AttemptSpans::kMaxAttempts));
  EXPECT_EQ(record.spans->attempts().front().id, AttemptId{1});
  EXPECT_EQ(record.spans->attempts().back().id, AttemptId{100});
}

TEST_F(RequestSpansTest, OnlyRecordedTracesHaveSpans) {
  scheduling::RequestSpec spec;
  EXPECT_FALSE(RecordedTrace(spec).has_value());
  spec.traceparent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00";
  EXPECT_FALSE(RecordedTrace(spec).has_value());
  spec.traceparent = kTraceparent;
  EXPECT_TRUE(RecordedTrace(spec).has_value());
}

TEST_F(RequestSpansTest, ARejectionIsOneSpan) {
  const RequestEnd end{.model = "stories",
                       .status = absl::ResourceExhaustedError("overloaded"),
                       .now = start_ + Ms(1),
                       .wall_now = start_ + Ms(1) + kWall};
  const std::vector<Span> spans =
      MakeRejectionSpans(*incoming_, "queue_full", end);
  ASSERT_THAT(spans, SizeIs(1));
  EXPECT_TRUE(spans[0].failed);
  EXPECT_EQ(Length(spans[0]), Ms(1));
  EXPECT_EQ(Value(spans[0], "baton.rejected"), "queue_full");
  EXPECT_EQ(Value(spans[0], "error.type"), "RESOURCE_EXHAUSTED");
  incoming_->spec.traceparent = "";
  EXPECT_THAT(MakeRejectionSpans(*incoming_, "queue_full", end), IsEmpty());
}

}  // namespace
}  // namespace baton::router
