// The JSON form of OTLP, against what its specification says of it.
#include "router/tracing/otlp_json.h"

#include <cmath>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/json.h"

namespace baton::router::tracing {
namespace {

using nlohmann::json;
using ::testing::MatchesRegex;

Span MakeSpan() {
  Span span;
  span.context = {.trace_high = 0x4bf92f3577b34da6,
                  .trace_low = 0xa3ce929d0e0e4736,
                  .span = 0xf067aa0ba902b7,
                  .sampled = true};
  span.parent = 0xb7ad6b7169203331;
  span.name = "chat stories";
  span.kind = Span::Kind::kServer;
  span.start = absl::FromUnixNanos(1'700'000'000'123'456'789);
  span.end = span.start + absl::Milliseconds(5);
  return span;
}

json Encode(const std::vector<Span>& spans,
            const std::vector<Attribute>& resource = {}) {
  return json::parse(OtlpTraceRequest(resource, spans));
}

json SpanIn(const json& request) {
  return request["resourceSpans"][0]["scopeSpans"][0]["spans"][0];
}

TEST(OtlpJsonTest, IdsAreHexadecimalTimesAreStringsAndEnumsAreNumbers) {
  const json span = SpanIn(Encode({MakeSpan()}));
  // Not base64, as Protocol Buffers' own JSON has bytes.
  EXPECT_EQ(span["traceId"], "4bf92f3577b34da6a3ce929d0e0e4736");
  EXPECT_EQ(span["spanId"], "00f067aa0ba902b7");
  EXPECT_EQ(span["parentSpanId"], "b7ad6b7169203331");
  EXPECT_EQ(span["name"], "chat stories");
  EXPECT_EQ(span["kind"], 2);
  EXPECT_EQ(span["flags"], 1);
  EXPECT_EQ(span["startTimeUnixNano"], "1700000000123456789");
  EXPECT_EQ(span["endTimeUnixNano"], "1700000000128456789");
  EXPECT_EQ(span["status"], json::object());
  EXPECT_TRUE(span["attributes"].is_array());
  EXPECT_FALSE(span.contains("events"));
}

TEST(OtlpJsonTest, ARootHasNoParent) {
  Span span = MakeSpan();
  span.parent = 0;
  EXPECT_FALSE(SpanIn(Encode({span})).contains("parentSpanId"));
}

TEST(OtlpJsonTest, EachKindOfAttribute) {
  Span span = MakeSpan();
  span.attributes = {{"text", std::string("a \"b\"\n")},
                     {"bad", std::string("x\xff")},
                     {"whole", int64_t{1} << 60},
                     {"real", 0.25},
                     {"whole real", 3.0},
                     {"no number", std::nan("")},
                     {"texts", std::vector<std::string>{"stop", "length"}},
                     {"none", std::vector<std::string>{}}};
  EXPECT_EQ(SpanIn(Encode({span}))["attributes"], json::parse(R"([
        {"key":"text","value":{"stringValue":"a \"b\"\n"}},
        {"key":"bad","value":{"stringValue":"x\ufffd"}},
        {"key":"whole","value":{"intValue":"1152921504606846976"}},
        {"key":"real","value":{"doubleValue":0.25}},
        {"key":"whole real","value":{"doubleValue":3.0}},
        {"key":"no number","value":{"doubleValue":0.0}},
        {"key":"texts","value":{"arrayValue":{"values":[
          {"stringValue":"stop"},{"stringValue":"length"}]}}},
        {"key":"none","value":{"arrayValue":{"values":[]}}}])"));
}

TEST(OtlpJsonTest, EventsAndAFailure) {
  Span span = MakeSpan();
  span.events = {{.name = "retry",
                  .at = span.start + absl::Nanoseconds(1),
                  .attributes = {{"cause", std::string("refused")}}}};
  span.failed = true;
  span.error = "no \"room\"";
  const json parsed = SpanIn(Encode({span}));
  EXPECT_EQ(parsed["events"], json::parse(R"([{
    "timeUnixNano":"1700000000123456790","name":"retry",
    "attributes":[{"key":"cause","value":{"stringValue":"refused"}}]}])"));
  EXPECT_EQ(parsed["status"],
            json::parse(R"({"code":2,"message":"no \"room\""})"));
}

TEST(OtlpJsonTest, ASpanNeverEndsBeforeItStarts) {
  Span span = MakeSpan();
  span.end = span.start - absl::Seconds(1);
  const json parsed = SpanIn(Encode({span}));
  EXPECT_EQ(parsed["endTimeUnixNano"], parsed["startTimeUnixNano"]);
}

TEST(OtlpJsonTest, ManySpansShareResourceAndScope) {
  const json request = Encode({MakeSpan(), MakeSpan(), MakeSpan()},
                              {{"service.name", std::string("baton-router")}});
  EXPECT_EQ(request.size(), 1u);
  ASSERT_EQ(request["resourceSpans"].size(), 1u);
  EXPECT_EQ(request["resourceSpans"][0]["resource"],
            json::parse(R"({"attributes":[{"key":"service.name",
                            "value":{"stringValue":"baton-router"}}]})"));
  const json scope = request["resourceSpans"][0]["scopeSpans"][0];
  EXPECT_EQ(scope["scope"]["name"], "baton.router");
  EXPECT_EQ(scope["spans"].size(), 3u);
}

TEST(OtlpJsonTest, WhatACollectorThrewAway) {
  EXPECT_EQ(ParseTraceResponse("").rejected_spans, 0);
  EXPECT_EQ(ParseTraceResponse("{}").rejected_spans, 0);
  EXPECT_EQ(ParseTraceResponse("[3").rejected_spans, 0);
  EXPECT_EQ(ParseTraceResponse(R"({"partialSuccess":[]})").rejected_spans, 0);
  const PartialSuccess partial = ParseTraceResponse(
      R"({"partialSuccess":{"rejectedSpans":"5","errorMessage":"too old"}})");
  EXPECT_EQ(partial.rejected_spans, 5);
  EXPECT_EQ(partial.message, "too old");
  EXPECT_EQ(ParseTraceResponse(R"({"partialSuccess":{"rejectedSpans":7}})")
                .rejected_spans,
            7);
  EXPECT_EQ(ParseTraceResponse(R"({"partialSuccess":{"rejectedSpans":-7}})")
                .rejected_spans,
            0);
  EXPECT_EQ(ParseTraceResponse(R"({"partialSuccess":{"rejectedSpans":"x"}})")
                .rejected_spans,
            0);
}

}  // namespace
}  // namespace baton::router::tracing
