// The spans that a real router posts to a collector: an HTTP server in the
// test's process.
#include <memory>
#include <set>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/json.h"
#include "common/trace_context.h"
#include "tests/integration/client.h"
#include "tests/integration/cluster.h"
#include "tests/integration/raw_call.h"
#include "tests/support/otlp_collector.h"
#include "tests/support/own_loopback.h"
#include "tests/support/tiny_model.h"

namespace baton::test {
namespace {

using nlohmann::json;
using ::testing::Contains;
using ::testing::SizeIs;

constexpr char kTraceId[] = "4bf92f3577b34da6a3ce929d0e0e4736";
constexpr char kCallerSpan[] = "00f067aa0ba902b7";

class TracingTest : public testing::Test {
 protected:
  void Start(const std::string& endpoint, Flags router = {}) {
    const std::string model_dir = scratch_.path() + "/model";
    ASSERT_TRUE(WriteTinyModel(model_dir).ok());
    cluster_ = std::make_unique<Cluster>(model_dir);
    router.insert(router.end(), {"--otlp-endpoint", endpoint});
    const absl::Status started =
        cluster_->Start({.prefill = {{}}, .decode = {{}}, .router = router});
    ASSERT_TRUE(started.ok()) << started;
    stub_ = cluster_->MakeStub();
  }

  // Runs a request to its end; `flags` of the client's traceparent, or none.
  v1::GenerateResponse Serve(const std::string& id, const std::string& flags,
                             uint32_t tokens = 4) {
    grpc::ClientContext context;
    SetDeadline(&context);
    if (!flags.empty()) {
      context.AddMetadata("traceparent", absl::StrCat("00-", kTraceId, "-",
                                                      kCallerSpan, "-", flags));
    }
    v1::GenerateRequest request = GreedyRequest({5, 6, 7}, tokens);
    request.set_request_id(id);
    const auto reader = stub_->Generate(&context, request);
    v1::GenerateResponse last;
    for (v1::GenerateResponse next; reader->Read(&next);) last = next;
    const grpc::Status status = reader->Finish();
    EXPECT_TRUE(status.ok()) << status.error_message();
    return last;
  }

  // Serves requests until one went without a retry and with a hand-off that was
  // reported in time: a busy machine may disturb some. Returns its id.
  std::string ServeUndisturbed(v1::GenerateResponse* last) {
    for (int round = 0; round < 10; ++round) {
      EXPECT_TRUE(cluster_->AwaitJoined(1, 1).ok());
      const std::string id = absl::StrCat("traced-", round);
      *last = Serve(id, "01", 100);
      if (last->timing().retries() == 0 &&
          last->timing().kv_transfer_bytes() > 0) {
        return id;
      }
    }
    ADD_FAILURE() << "none went as is usual: " << last->ShortDebugString();
    return "traced-9";
  }

  double RouterMetric(const std::string& name) {
    const auto text =
        HttpGet(cluster_->Address("router", "metrics"), "/metrics");
    return text.ok() ? MetricValue(*text, name) : -1;
  }

  ScratchDir scratch_;
  std::unique_ptr<Cluster> cluster_;
  std::unique_ptr<v1::Inference::Stub> stub_;
};

TEST_F(TracingTest, ARequestsSpansComeToTheCollector) {
  OtlpCollector collector;
  ASSERT_NO_FATAL_FAILURE(Start(collector.endpoint()));
  v1::GenerateResponse last;
  const std::string id = ServeUndisturbed(&last);
  const std::vector<json> spans = collector.AwaitRequest(id);
  std::set<std::string> ids;
  for (const json& span : spans) {
    EXPECT_EQ(span["traceId"], kTraceId) << span;
    EXPECT_TRUE(ids.insert(span["spanId"]).second) << span;
    EXPECT_LE(StartOf(span), EndOf(span)) << span;
  }
  const json& request = spans[0];
  EXPECT_EQ(request["parentSpanId"], kCallerSpan);
  EXPECT_EQ(request["name"], "text_completion model");
  EXPECT_EQ(request["kind"], 2);
  EXPECT_EQ(request["status"], json::object());
  EXPECT_EQ(AttributeOf(request, "gen_ai.usage.input_tokens"), "3");
  EXPECT_EQ(AttributeOf(request, "gen_ai.usage.output_tokens"), "100");
  EXPECT_EQ(AttributeOf(request, "baton.prefill.worker"), "prefill-0");
  EXPECT_EQ(AttributeOf(request, "baton.decode.worker"), "decode-0");

  // The stages add up to what the client was told.
  int64_t sum = 0;
  for (const char* stage :
       {"route queue", "prefill queue", "prefill", "first token return"}) {
    ASSERT_THAT(Named(spans, stage), SizeIs(1)) << stage;
    sum += EndOf(Named(spans, stage)[0]) - StartOf(Named(spans, stage)[0]);
  }
  EXPECT_NEAR(sum / 1e9, last.timing().ttft_seconds(), 1e-6);
  EXPECT_NEAR(
      AttributeOf(request, "gen_ai.response.time_to_first_chunk").get<double>(),
      last.timing().ttft_seconds(), 1e-9);
  ASSERT_THAT(Named(spans, "kv transfer"), SizeIs(1));
  EXPECT_EQ(
      AttributeOf(Named(spans, "kv transfer")[0], "baton.kv_transfer.bytes"),
      absl::StrCat(last.timing().kv_transfer_bytes()));
  ASSERT_THAT(Named(spans, "decode"), SizeIs(1));

  // A span has the id that the worker logs.
  EXPECT_TRUE(Eventually([&] {
    return absl::StrContains(
        cluster_->process("prefill-0").Log(),
        absl::StrCat("span=",
                     Named(spans, "prefill")[0]["spanId"].get<std::string>()));
  }));
  // The time is today's.
  const double ago =
      absl::ToUnixNanos(absl::Now()) / 1e9 - StartOf(request) / 1e9;
  EXPECT_GE(ago, 0);
  EXPECT_LE(ago, 600);
  const std::string body = collector.Posts()[0].body;
  const json resource = json::parse(body)["resourceSpans"][0]["resource"];
  EXPECT_EQ(AttributeOf(resource, "service.name"), "baton-router");
  EXPECT_EQ(AttributeOf(resource, "service.instance.id"), "router");
}

TEST_F(TracingTest, TheClientSaysWhetherItsTraceIsRecorded) {
  OtlpCollector collector;
  // Of the router's own traces, none.
  ASSERT_NO_FATAL_FAILURE(
      Start(collector.endpoint(), {"--trace-sample-ratio", "0"}));
  Serve("not recorded", "00");
  Serve("not sampled", "");
  Serve("recorded", "01");
  collector.AwaitRequest("recorded");
  for (const json& span : collector.Spans()) {
    EXPECT_EQ(span["traceId"], kTraceId);
    EXPECT_NE(AttributeOf(span, "gen_ai.response.id"), "not recorded");
  }
}

TEST_F(TracingTest, SpansWaitForACollectorThatIsDown) {
  std::string address;
  // An address of which nobody else takes a port meanwhile.
  { address = OtlpCollector(test::OwnLoopback() + ":0").address(); }
  ASSERT_NO_FATAL_FAILURE(Start("http://" + address));
  Serve("early", "01");
  EXPECT_TRUE(Eventually(
      [&] { return RouterMetric("baton_trace_post_failures_total") > 0; }));
  OtlpCollector collector(address);
  EXPECT_FALSE(collector.AwaitRequest("early").empty());
  EXPECT_TRUE(Eventually(
      [&] { return RouterMetric("baton_trace_spans_exported_total") > 0; }));
  EXPECT_EQ(RouterMetric("baton_trace_spans_dropped_total"), 0);
}

// The collector takes the connection and says nothing: requests go on, and the
// router ends in time.
TEST_F(TracingTest, ACollectorThatHangsHoldsUpNobody) {
  OtlpCollector collector;
  collector.HoldAnswers();
  ASSERT_NO_FATAL_FAILURE(Start(collector.endpoint()));
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(Serve(absl::StrCat("r", i), "01").usage().output_tokens(), 4u);
  }
  collector.AwaitPosts(1);
  cluster_.reset();  // checks that the router ends well
}

TEST_F(TracingTest, ARouterThatEndsPostsWhatWaits) {
  OtlpCollector collector;
  ASSERT_NO_FATAL_FAILURE(Start(collector.endpoint()));
  Serve("last", "01");
  cluster_.reset();
  std::vector<std::string> ids;
  for (const json& span : collector.Spans()) {
    const json id = AttributeOf(span, "gen_ai.response.id");
    if (id.is_string()) ids.push_back(id);
  }
  EXPECT_THAT(ids, Contains("last"));
}

TEST(TracingFlagsTest, ABadEndpointIsNamed) {
  const RunResult result =
      RunProgram("baton-router", {"--model", "x", "--decode", "127.0.0.1:1",
                                  "--otlp-endpoint", "collector:4318"});
  EXPECT_EQ(result.exit.Describe(), "exit status 2");
  EXPECT_THAT(result.err, ::testing::HasSubstr("--otlp-endpoint"));
}

}  // namespace
}  // namespace baton::test
