#include "common/trace_context.h"

#include <set>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace baton {
namespace {

// The specification's own example.
constexpr char kExample[] =
    "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

// Draws 1, 2, 3, ...
class Counter final {
 public:
  uint64_t operator()() const { return ++last_; }

 private:
  mutable uint64_t last_ = 0;
};

TEST(ParseTraceparentTest, ReadsTheExamplesOfTheSpecification) {
  const auto context = ParseTraceparent(kExample);
  ASSERT_TRUE(context.has_value());
  EXPECT_EQ(TraceIdHex(*context), "4bf92f3577b34da6a3ce929d0e0e4736");
  EXPECT_EQ(SpanIdHex(context->span), "00f067aa0ba902b7");
  EXPECT_TRUE(context->sampled);
  EXPECT_EQ(FormatTraceparent(*context), kExample);

  const auto unsampled = ParseTraceparent(
      "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00");
  ASSERT_TRUE(unsampled.has_value());
  EXPECT_FALSE(unsampled->sampled);
  EXPECT_THAT(FormatTraceparent(*unsampled), testing::EndsWith("-00"));
}

TEST(ParseTraceparentTest, FlagsThatVersion00DoesNotHaveAreDropped) {
  const auto context = ParseTraceparent(
      "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-ff");
  ASSERT_TRUE(context.has_value());
  EXPECT_TRUE(context->sampled);
  EXPECT_EQ(FormatTraceparent(*context), kExample);
}

TEST(ParseTraceparentTest, LaterVersionsAreReadAsFarAsThisOneGoes) {
  for (const char* header :
       {"cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        "cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-what-comes"}) {
    const auto context = ParseTraceparent(header);
    ASSERT_TRUE(context.has_value()) << header;
    EXPECT_EQ(FormatTraceparent(*context), kExample);
  }
  EXPECT_FALSE(ParseTraceparent(
      "cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01.what"));
}

TEST(ParseTraceparentTest, RefusesWhatTheSpecificationCallsInvalid) {
  const std::string good = kExample;
  for (const std::string& header : {
           std::string(),
           std::string("00"),
           good.substr(0, 54),
           good + "0",
           good + "-",
           " " + good,
           good + " ",
           // Version ff is forbidden; versions are two hexadecimal digits.
           "ff" + good.substr(2),
           "0g" + good.substr(2),
           // Upper case.
           std::string(
               "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01"),
           // All zeros is no id.
           std::string(
               "00-00000000000000000000000000000000-00f067aa0ba902b7-01"),
           std::string(
               "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01"),
           // Something else where a dash belongs, or a dash in a number.
           std::string(
               "00_4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"),
           std::string(
               "00-4bf92f3577b34da6a3ce929d0e0e473-600f067aa0ba902b7-01"),
           std::string(
               "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-0x"),
           std::string(
               "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b\0-01", 55),
       }) {
    EXPECT_FALSE(ParseTraceparent(header).has_value()) << header;
  }
}

TEST(StartSpanTest, GoesOnInTheCallersTrace) {
  Counter draw;
  const StartedSpan started = StartSpan(kExample, draw);
  EXPECT_EQ(FormatTraceparent(started.context),
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000001-01");
  EXPECT_EQ(started.parent, 0x00f067aa0ba902b7u);
}

TEST(StartSpanTest, AnInvalidHeaderBeginsANewTrace) {
  Counter draw;
  const StartedSpan started = StartSpan("not a traceparent", draw);
  EXPECT_EQ(FormatTraceparent(started.context),
            "00-00000000000000010000000000000002-0000000000000003-01");
  EXPECT_EQ(started.parent, 0u);
}

TEST(StartSpanTest, NoIdIsAllZeros) {
  const auto zero = [] { return uint64_t{0}; };
  const TraceContext fresh = NewTrace(zero);
  EXPECT_TRUE(ParseTraceparent(FormatTraceparent(fresh)).has_value());
  EXPECT_TRUE(
      ParseTraceparent(FormatTraceparent(ChildSpan(fresh, zero))).has_value());
}

TEST(PartSpanTest, EachPartHasASpanOfItsOwnThatAnyoneCanTell) {
  const TraceContext router = *ParseTraceparent(kExample);
  std::set<uint64_t> spans = {router.span};
  for (const char* part : {"prefill", "decode", "transfer"}) {
    for (uint64_t attempt : {1, 2, 11}) {
      const TraceContext span = PartSpan(router, part, attempt);
      EXPECT_EQ(TraceIdHex(span), TraceIdHex(router));
      EXPECT_EQ(span, PartSpan(router, part, attempt));
      spans.insert(span.span);
    }
  }
  EXPECT_EQ(spans.size(), 10u);
  TraceContext other = router;
  other.span = 5;
  EXPECT_EQ(spans.count(PartSpan(other, "prefill", 1).span), 0u);
}

TEST(IsSampledTest, AShareOfAllTracesAndTheSameOnesEverywhere) {
  TraceContext context = *ParseTraceparent(kExample);
  EXPECT_TRUE(IsSampled(context, 1));
  EXPECT_FALSE(IsSampled(context, 0));
  // Of the id, the last 56 bits count, and large ones are in.
  context.trace_low = 0x00ffffffffffffff;
  EXPECT_TRUE(IsSampled(context, 0.001));
  context.trace_low = 0xff00000000000000;
  EXPECT_FALSE(IsSampled(context, 0.999));
  EXPECT_TRUE(IsSampled(context, 1));
  int in = 0;
  for (uint64_t i = 0; i < 1000; ++i) {
    context.trace_low = i * 0x9e3779b97f4a7c15;
    const bool sampled = IsSampled(context, 0.25);
    in += sampled ? 1 : 0;
    // Who samples more has these, too.
    EXPECT_TRUE(!sampled || IsSampled(context, 0.5));
  }
  EXPECT_GT(in, 200);
  EXPECT_LT(in, 300);
}

}  // namespace
}  // namespace baton
