// What a request leaves in the logs of a cluster, and what `baton explain` says
// of it.
#include <signal.h>

#include <memory>
#include <string>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/json.h"
#include "tests/integration/client.h"
#include "tests/integration/cluster.h"
#include "tests/support/tiny_model.h"

namespace baton::test {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::Not;

constexpr char kTrace[] = "4bf92f3577b34da6a3ce929d0e0e4736";
constexpr char kClientSpan[] = "00f067aa0ba902b7";

class LogsTest : public testing::Test {
 protected:
  void Start(const Flags& flags) {
    const std::string model_dir = scratch_.path() + "/model";
    ASSERT_TRUE(WriteTinyModel(model_dir).ok());
    cluster_ = std::make_unique<Cluster>(model_dir);
    const absl::Status started = cluster_->Start(
        {.prefill = {flags}, .decode = {flags}, .router = flags});
    ASSERT_TRUE(started.ok()) << started;
    stub_ = cluster_->MakeStub();
  }

  // Runs a request to its end, in the client's trace.
  void Serve(const std::string& id, uint32_t tokens = 4) {
    grpc::ClientContext context;
    SetDeadline(&context);
    context.AddMetadata("traceparent",
                        absl::StrCat("00-", kTrace, "-", kClientSpan, "-01"));
    v1::GenerateRequest request = GreedyRequest({5, 6, 7}, tokens);
    request.set_request_id(id);
    const auto reader = stub_->Generate(&context, request);
    v1::GenerateResponse response;
    while (reader->Read(&response)) last_ = response;
    const grpc::Status status = reader->Finish();
    ASSERT_TRUE(status.ok()) << status.error_message();
  }

  // Serves requests, each under a name of its own, until one went as is usual.
  // A busy machine may keep a worker from answering pings for a second, which
  // takes it for lost, or its report from coming in time. Returns the name.
  std::string ServeUndisturbed(const std::string& name, uint32_t tokens) {
    for (int round = 0; round < 10; ++round) {
      const absl::Status joined = cluster_->AwaitJoined(1, 1);
      EXPECT_TRUE(joined.ok()) << joined;
      const std::string id = absl::StrCat(name, "-", round);
      Serve(id, tokens);
      if (last_.timing().retries() == 0 &&
          last_.timing().kv_transfer_bytes() > 0) {
        return id;
      }
    }
    ADD_FAILURE() << "none went as is usual: " << last_.ShortDebugString();
    return name;
  }

  // The first line of a process's log that has `text`, and `also`; waits for
  // it.
  std::string LineWith(const std::string& process, const std::string& text,
                       const std::string& also = "") {
    std::string found;
    EXPECT_TRUE(Eventually([&] {
      const std::string log = cluster_->process(process).Log();
      for (absl::string_view line : absl::StrSplit(log, '\n')) {
        if (!absl::StrContains(line, text) || !absl::StrContains(line, also)) {
          continue;
        }
        found = std::string(line);
        // A line that is still being written ends later.
        return absl::StrContains(log, found + "\n");
      }
      return false;
    })) << process
        << " never logged " << text;
    return found;
  }

  // What the router knows of it; nothing before the request is there.
  v1::ExplainRequestResponse AskAbout(const std::string& id) {
    grpc::ClientContext context;
    SetDeadline(&context);
    v1::ExplainRequestRequest query;
    query.set_request_id(id);
    v1::ExplainRequestResponse told;
    if (!stub_->ExplainRequest(&context, query, &told).ok()) told.Clear();
    return told;
  }

  RunResult Explain(const std::string& id, const Flags& more = {}) {
    Flags flags = {"explain", id, "--router",
                   cluster_->Address("router", "grpc")};
    flags.insert(flags.end(), more.begin(), more.end());
    return RunProgram("baton", flags);
  }

  ScratchDir scratch_;
  std::unique_ptr<Cluster> cluster_;
  std::unique_ptr<v1::Inference::Stub> stub_;
  v1::GenerateResponse last_;  // of the last request
};

TEST_F(LogsTest, OneTraceGoesThroughRouterPrefillHandoffAndDecode) {
  ASSERT_NO_FATAL_FAILURE(Start({"--log-format", "json"}));
  // Long enough for the report of the hand-off to come before the end.
  const std::string id = ServeUndisturbed("traced", 100);
  const std::string of_it = absl::StrCat("\"", id, "\"");
  const json router =
      json::parse(LineWith("router", "\"message\":\"request ended\"", of_it));
  const json prefill = json::parse(
      LineWith("prefill-0", "\"message\":\"prefill ended\"", of_it));
  const json decode =
      json::parse(LineWith("decode-0", "\"message\":\"decode ended\"", of_it));

  for (const json& line : {router, prefill, decode}) {
    EXPECT_EQ(line["request"], id) << line;
    EXPECT_EQ(line["trace"], kTrace) << line;
    EXPECT_EQ(line["level"], "info") << line;
    EXPECT_THAT(line["time"].get<std::string>(),
                MatchesRegex("20..-..-..T..:..:..\\.......Z"));
  }
  EXPECT_EQ(router["process"], "baton-router");
  EXPECT_EQ(prefill["process"], "baton-prefill");
  EXPECT_EQ(prefill["name"], "prefill-0");
  EXPECT_EQ(decode["name"], "decode-0");

  // client > router > prefill, decode, hand-off.
  EXPECT_EQ(router["parent"], kClientSpan);
  EXPECT_NE(router["span"], kClientSpan);
  EXPECT_EQ(prefill["parent"], router["span"]);
  EXPECT_EQ(decode["parent"], router["span"]);
  EXPECT_NE(prefill["span"], decode["span"]);
  EXPECT_NE(prefill["span"], router["span"]);
  EXPECT_EQ(prefill["transfer_span"], decode["transfer_span"]);
  EXPECT_EQ(prefill["attempt"], decode["attempt"]);

  EXPECT_EQ(router["outcome"], "length");
  EXPECT_EQ(router["prompt_tokens"], 3);
  EXPECT_EQ(router["output_tokens"], 100);
  EXPECT_EQ(router["prefill_worker"], "prefill-0");
  EXPECT_EQ(router["decode_worker"], "decode-0");
  EXPECT_EQ(router["retries"], 0);
  EXPECT_NEAR(router["route_queue_ms"].get<double>() +
                  router["prefill_queue_ms"].get<double>() +
                  router["prefill_ms"].get<double>() +
                  router["first_token_return_ms"].get<double>(),
              router["ttft_ms"].get<double>(), 0.003);
  EXPECT_EQ(prefill["outcome"], "ok");
  EXPECT_EQ(prefill["tokens"], 3);
  EXPECT_EQ(prefill["output_tokens"], 1);
  EXPECT_GT(prefill["kv_transfer_bytes"], 0);
  EXPECT_EQ(decode["outcome"], "ok");
  EXPECT_EQ(decode["output_tokens"], 99);
  EXPECT_EQ(decode["kv_transfer_bytes"], prefill["kv_transfer_bytes"]);
  EXPECT_GT(decode["landed_ms"], 0);
  EXPECT_GE(decode["total_ms"], decode["landed_ms"]);
}

TEST_F(LogsTest, EachLineOfAJsonLogIsAnObject) {
  ASSERT_NO_FATAL_FAILURE(Start({"--log-format", "json"}));
  ASSERT_NO_FATAL_FAILURE(Serve("one"));
  for (const char* process : {"router", "prefill-0", "decode-0"}) {
    LineWith(process, " ended\"");
    const std::string log = cluster_->process(process).Log();
    int lines = 0;
    for (absl::string_view line : absl::StrSplit(log, '\n')) {
      if (line.empty()) continue;
      ++lines;
      const json parsed =
          json::parse(line, nullptr, /*allow_exceptions=*/false);
      ASSERT_TRUE(parsed.is_object()) << process << ": " << line;
      for (const char* member : {"time", "level", "process", "message"}) {
        EXPECT_TRUE(parsed.contains(member)) << line;
      }
    }
    EXPECT_GE(lines, 2) << process;
  }
}

TEST_F(LogsTest, AnIdCannotForgeFieldsOfATextLine) {
  ASSERT_NO_FATAL_FAILURE(Start({}));
  ASSERT_NO_FATAL_FAILURE(Serve("x\" outcome=error \\"));
  const std::string line = LineWith("router", "request ended");
  EXPECT_THAT(line, AllOf(HasSubstr("request=\"x\\\" outcome=error \\\\\" "),
                          HasSubstr(absl::StrCat(" trace=", kTrace, " ")),
                          HasSubstr(" outcome=length ")));
  EXPECT_THAT(LineWith("prefill-0", "prefill ended"),
              HasSubstr(absl::StrCat(" trace=", kTrace, " ")));
  EXPECT_THAT(LineWith("decode-0", "decode ended"),
              HasSubstr(absl::StrCat(" trace=", kTrace, " ")));
}

TEST_F(LogsTest, ExplainTellsWhereARequestWent) {
  ASSERT_NO_FATAL_FAILURE(Start({}));
  const std::string id = ServeUndisturbed("story", 100);
  const RunResult told = Explain(id);
  EXPECT_TRUE(told.exit.clean()) << told.err;
  EXPECT_THAT(told.out,
              AllOf(HasSubstr("request " + id + ": done, length reached\n"),
                    HasSubstr(kTrace), HasSubstr("prefill-0 -> decode-0"),
                    HasSubstr("* decode-0"), HasSubstr("KV hand-off"),
                    Not(HasSubstr("ended:"))));

  const RunResult as_json = Explain(id, {"--json"});
  EXPECT_TRUE(as_json.exit.clean()) << as_json.err;
  const json parsed = json::parse(as_json.out);
  EXPECT_EQ(parsed["state"], "done");
  EXPECT_EQ(parsed["placements"].size(), 1u);
  EXPECT_EQ(parsed["placements"][0]["candidates"].size(), 2u);

  const RunResult unknown = Explain("no-story");
  EXPECT_EQ(unknown.exit.Describe(), "exit status 1");
  EXPECT_EQ(unknown.out, "");
  EXPECT_THAT(unknown.err, HasSubstr("no-story"));
}

// The prefill worker dies with the request on it, and the decode worker goes on
// alone.
TEST_F(LogsTest, AFailedAttemptIsExplained) {
  ASSERT_NO_FATAL_FAILURE(Start({"--log-format", "json"}));
  // A worker that stands still is taken for lost after a second or so; on a
  // busy machine the request may come later than that. Then again.
  std::string id;
  bool placed_there = false;
  for (int round = 0; round < 10 && !HasFailure(); ++round) {
    id = absl::StrCat("moved-", round);
    cluster_->process("prefill-0").Signal(SIGSTOP);
    std::thread client([&] { Serve(id); });
    EXPECT_TRUE(Eventually([&] {
      const v1::ExplainRequestResponse told = AskAbout(id);
      placed_there = told.placements_size() > 0 &&
                     told.placements(0).prefill_worker() == "prefill-0";
      return told.placements_size() > 0;
    }));
    if (placed_there) {
      cluster_->Kill("prefill-0");
    } else {
      cluster_->process("prefill-0").Signal(SIGCONT);
    }
    client.join();
    if (placed_there) break;
    const absl::Status joined = cluster_->AwaitJoined(1, 1);
    ASSERT_TRUE(joined.ok()) << joined;
  }
  ASSERT_TRUE(placed_there);
  const RunResult told = Explain(id);
  EXPECT_TRUE(told.exit.clean()) << told.err;
  EXPECT_THAT(told.out, AllOf(HasSubstr("1  prefill-0 -> decode-0 after "),
                              HasSubstr("ended: worker_lost: "),
                              HasSubstr("2  decode-0 alone after "),
                              HasSubstr("(no_prefill_worker)")));
  const std::string of_it = absl::StrCat("\"", id, "\"");
  const json line =
      json::parse(LineWith("router", "\"message\":\"request ended\"", of_it));
  EXPECT_GE(line["retries"], 1);
  EXPECT_EQ(line["outcome"], "length");
  EXPECT_FALSE(line.contains("prefill_worker")) << line;
  const json retried =
      json::parse(LineWith("router", "\"message\":\"attempt ended\"", of_it));
  EXPECT_EQ(retried["trace"], kTrace);
  EXPECT_EQ(retried["cause"], "worker_lost");
}

}  // namespace
}  // namespace baton::test
