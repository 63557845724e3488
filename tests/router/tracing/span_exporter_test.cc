// What goes to a collector, and what becomes of spans when it is slow, refuses
// or is gone: a real HTTP server on the loopback.
#include "router/tracing/span_exporter.h"

#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/json.h"
#include "tests/support/await_that.h"
#include "tests/support/otlp_collector.h"
#include "tests/support/own_loopback.h"

namespace baton::router::tracing {
namespace {

using test::AwaitThat;
using test::OtlpCollector;
using ::testing::HasSubstr;
using ::testing::SizeIs;

class SpanExporterTest : public testing::Test {
 protected:
  SpanExporterTest() : metrics_({}) {
    options_.batch_delay = absl::Milliseconds(1);
    options_.first_pause = absl::Milliseconds(1);
    options_.longest_pause = absl::Milliseconds(4);
    // A busy machine may be slow.
    options_.post_timeout = absl::Seconds(60);
    options_.flush = absl::Seconds(60);
  }

  void Start(const std::string& endpoint) {
    options_.otlp.url = endpoint + "/v1/traces";
    exporter_ = std::make_unique<SpanExporter>(options_, &metrics_);
  }

  static std::vector<Span> Spans(int count, const std::string& name = "s") {
    std::vector<Span> spans;
    for (int i = 0; i < count; ++i) {
      Span span;
      span.context = {.trace_high = 1,
                      .trace_low = 2,
                      .span = static_cast<uint64_t>(i + 1),
                      .sampled = true};
      span.name = name;
      spans.push_back(std::move(span));
    }
    return spans;
  }

  // The sum over all lines that begin so.
  double Metric(const std::string& prefix) {
    double sum = 0;
    for (absl::string_view line : absl::StrSplit(metrics_.Text(), '\n')) {
      if (!absl::StartsWith(line, prefix)) continue;
      double value = 0;
      EXPECT_TRUE(absl::SimpleAtod(line.substr(line.rfind(' ') + 1), &value));
      sum += value;
    }
    return sum;
  }
  double Dropped(const std::string& reason) {
    return Metric(absl::StrCat("baton_trace_spans_dropped_total{reason=\"",
                               reason, "\"}"));
  }

  metrics::Metrics metrics_;
  SpanExporter::Options options_;
  std::unique_ptr<SpanExporter> exporter_;
};

TEST_F(SpanExporterTest, PostsWithTheHeadersAndTheResource) {
  OtlpCollector collector;
  options_.otlp.headers = {{"authorization", "Bearer x"}, {"x-empty", ""}};
  options_.otlp.resource = {{"service.name", std::string("mine")}};
  Start(collector.endpoint());
  exporter_->Add(Spans(3));
  EXPECT_THAT(collector.AwaitSpans(3), SizeIs(3));
  const auto posts = collector.Posts();
  ASSERT_THAT(posts, SizeIs(1));
  EXPECT_EQ(posts[0].method, "POST");
  EXPECT_EQ(posts[0].path, "/v1/traces");
  EXPECT_EQ(posts[0].Header("content-type"), "application/json");
  EXPECT_EQ(posts[0].Header("authorization"), "Bearer x");
  EXPECT_THAT(posts[0].body, HasSubstr("\"service.name\""));
  EXPECT_TRUE(AwaitThat(
      [&] { return Metric("baton_trace_spans_exported_total") == 3; }));
  EXPECT_EQ(Metric("baton_trace_spans_dropped_total"), 0);
  EXPECT_EQ(Metric("baton_trace_post_failures_total"), 0);
}

TEST_F(SpanExporterTest, ABatchIsBounded) {
  OtlpCollector collector;
  options_.max_batch_spans = 4;
  Start(collector.endpoint());
  exporter_->Add(Spans(10));
  collector.AwaitSpans(10);
  for (const http::Request& post : collector.Posts()) {
    const auto body = nlohmann::json::parse(post.body);
    EXPECT_LE(body["resourceSpans"][0]["scopeSpans"][0]["spans"].size(), 4u);
  }
}

TEST_F(SpanExporterTest, WhatMayWorkLaterIsTriedAgain) {
  OtlpCollector collector;
  collector.AnswerNext({{.status = 503}, {.status = 429}, {.status = 502}});
  Start(collector.endpoint());
  exporter_->Add(Spans(2));
  EXPECT_THAT(collector.AwaitSpans(2), SizeIs(2));
  EXPECT_THAT(collector.Posts(), SizeIs(4));
  EXPECT_EQ(Metric("baton_trace_post_failures_total"), 3);
  EXPECT_EQ(Metric("baton_trace_spans_dropped_total"), 0);
}

TEST_F(SpanExporterTest, WhatIsRefusedForGoodIsDropped) {
  OtlpCollector collector;
  collector.AnswerNext({{.status = 400}});
  Start(collector.endpoint());
  exporter_->Add(Spans(2, "bad"));
  EXPECT_TRUE(AwaitThat([&] { return Dropped("refused") == 2; }));
  exporter_->Add(Spans(1, "good"));
  const auto spans = collector.AwaitSpans(1);
  ASSERT_THAT(spans, SizeIs(1));
  EXPECT_EQ(spans[0]["name"], "good");
  EXPECT_THAT(collector.Posts(), SizeIs(2));
}

TEST_F(SpanExporterTest, APartialSuccessIsCounted) {
  OtlpCollector collector;
  collector.AnswerNext(
      {{.body = R"({"partialSuccess":{"rejectedSpans":"2"}})"}});
  Start(collector.endpoint());
  exporter_->Add(Spans(5));
  EXPECT_TRUE(AwaitThat([&] { return Dropped("refused") == 2; }));
  EXPECT_EQ(Metric("baton_trace_spans_exported_total"), 3);
}

TEST_F(SpanExporterTest, ACollectorThatComesLaterGetsWhatWaited) {
  std::string address;
  // An address of which nobody else takes a port meanwhile.
  { address = OtlpCollector(test::OwnLoopback() + ":0").address(); }
  Start("http://" + address);
  exporter_->Add(Spans(3));
  EXPECT_TRUE(AwaitThat(
      [&] { return Metric("baton_trace_post_failures_total") >= 2; }));
  OtlpCollector collector(address);
  EXPECT_THAT(collector.AwaitSpans(3), SizeIs(3));
  EXPECT_EQ(Metric("baton_trace_spans_dropped_total"), 0);
}

TEST_F(SpanExporterTest, TheQueueIsBoundedAndTakesAllOrNothing) {
  OtlpCollector collector;
  collector.HoldAnswers();
  options_.max_queued_spans = 8;
  options_.flush = absl::ZeroDuration();
  Start(collector.endpoint());
  exporter_->Add(Spans(1));
  collector.AwaitPosts(1);
  // The thread waits for the answer.
  exporter_->Add(Spans(6));
  exporter_->Add(Spans(3));  // no room
  EXPECT_EQ(Dropped("queue_full"), 3);
  EXPECT_EQ(Metric("baton_trace_spans_queued"), 6);
  exporter_->Add(Spans(2));
  EXPECT_EQ(Dropped("queue_full"), 3);
  EXPECT_EQ(Metric("baton_trace_spans_queued"), 8);
  exporter_->Add(Spans(1));
  EXPECT_EQ(Dropped("queue_full"), 4);
}

TEST_F(SpanExporterTest, StopPostsWhatWaits) {
  OtlpCollector collector;
  options_.batch_delay = absl::Hours(1);
  options_.max_batch_spans = 4;
  Start(collector.endpoint());
  exporter_->Add(Spans(9));
  exporter_->Add(Spans(1));
  exporter_->Stop();
  EXPECT_THAT(collector.Spans(), SizeIs(10));
  exporter_->Add(Spans(1));
  EXPECT_EQ(Dropped("queue_full"), 1);
}

TEST_F(SpanExporterTest, StopEndsAlthoughTheCollectorDoesNotAnswer) {
  OtlpCollector collector;
  collector.HoldAnswers();
  options_.flush = absl::Milliseconds(1);
  Start(collector.endpoint());
  exporter_->Add(Spans(2));
  collector.AwaitPosts(1);
  exporter_->Add(Spans(3));
  exporter_->Stop();
  EXPECT_EQ(Dropped("gave_up"), 5);
}

TEST_F(SpanExporterTest, StopEndsAlthoughItIsToWaitLong) {
  OtlpCollector collector;
  collector.AnswerNext({{.status = 503, .headers = {{"retry-after", "120"}}}});
  options_.flush = absl::Milliseconds(1);
  Start(collector.endpoint());
  exporter_->Add(Spans(2));
  collector.AwaitPosts(1);
  exporter_->Stop();
  // Whether the last try was in time or not.
  EXPECT_EQ(Dropped("gave_up") + Metric("baton_trace_spans_exported_total"), 2);
}

TEST_F(SpanExporterTest, ABatchIsGivenUpAfterItsTime) {
  OtlpCollector collector;
  collector.AnswerNext({{.status = 503}, {.status = 503}});
  options_.give_up_after = absl::ZeroDuration();
  Start(collector.endpoint());
  exporter_->Add(Spans(2));
  EXPECT_TRUE(AwaitThat([&] { return Dropped("gave_up") == 2; }));
  EXPECT_THAT(collector.Posts(), SizeIs(1));
}

}  // namespace
}  // namespace baton::router::tracing
