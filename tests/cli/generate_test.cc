// `baton generate` against a router that the test plays.
#include "cli/generate.h"

#include <signal.h>
#include <unistd.h>

#include <fstream>
#include <functional>
#include <string>

#include <gmock/gmock.h>
#include <google/protobuf/util/json_util.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tests/cli/fake_router.h"
#include "tests/support/scratch_dir.h"

namespace baton::cli {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

grpc::Status AnswerWithAStory(grpc::ServerContext*, Writer* writer) {
  WriteToken(writer, 11, "there");
  WriteToken(writer, 12, " was");
  v1::GenerateResponse last;
  last.set_finish_reason(v1::FINISH_REASON_STOP);
  last.mutable_usage()->set_prompt_tokens(4);
  writer->Write(last);
  return grpc::Status::OK;
}

class GenerateTest : public FakeRouterTest {
 protected:
  void SetUp() override {
    FakeRouterTest::SetUp();
    options_.router.address = address();
    options_.prompt = "Once";
    options_.timeout_seconds = 30;
    router_.set_answer(AnswerWithAStory);
  }

  int Run() {
    std::FILE* out = std::tmpfile();
    std::FILE* err = std::tmpfile();
    const int code = RunGenerate(options_, out, err);
    out_ = ReadBack(out);
    err_ = ReadBack(err);
    std::fclose(out);
    std::fclose(err);
    return code;
  }

  GenerateOptions options_;
  std::string out_;
  std::string err_;
};

TEST_F(GenerateTest, WritesTextAndSummaryApart) {
  EXPECT_EQ(Run(), kExitOk);
  EXPECT_EQ(out_, "there was\n");
  EXPECT_THAT(err_, StartsWith("2 tokens after a prompt of 4"));
  options_.echo = true;
  options_.quiet = true;
  EXPECT_EQ(Run(), kExitOk);
  EXPECT_EQ(out_, "Oncethere was\n");
  EXPECT_EQ(err_, "");
}

TEST_F(GenerateTest, SendsOnlyWhatTheUserSaid) {
  EXPECT_EQ(Run(), kExitOk);
  v1::GenerateRequest request = router_.request();
  EXPECT_EQ(request.text(), "Once");
  EXPECT_FALSE(request.has_max_tokens());
  EXPECT_FALSE(request.sampling().has_temperature());
  EXPECT_FALSE(request.sampling().has_seed());

  options_.tokens = {1, 5};
  options_.sampling.greedy = true;
  options_.max_tokens = 7;
  options_.sampling.top_k = 3;
  options_.sampling.top_p = 0.5f;
  options_.sampling.min_p = 0.25f;
  options_.sampling.repetition_penalty = 1.5f;
  options_.sampling.presence_penalty = -1.0f;
  options_.sampling.frequency_penalty = 2.0f;
  options_.sampling.seed = uint64_t{1} << 63;
  options_.ignore_eos = true;
  EXPECT_EQ(Run(), kExitOk);
  request = router_.request();
  EXPECT_THAT(request.token_ids().ids(), testing::ElementsAre(1, 5));
  EXPECT_EQ(request.sampling().temperature(), 0);
  EXPECT_TRUE(request.sampling().has_temperature());
  EXPECT_EQ(request.max_tokens(), 7u);
  EXPECT_EQ(request.sampling().top_k(), 3u);
  EXPECT_EQ(request.sampling().top_p(), 0.5f);
  EXPECT_EQ(request.sampling().min_p(), 0.25f);
  EXPECT_EQ(request.sampling().repetition_penalty(), 1.5f);
  EXPECT_EQ(request.sampling().presence_penalty(), -1.0f);
  EXPECT_EQ(request.sampling().frequency_penalty(), 2.0f);
  EXPECT_EQ(request.sampling().seed(), uint64_t{1} << 63);
  EXPECT_TRUE(request.ignore_eos());
}

TEST_F(GenerateTest, SaysWhatTheAnswerIsToBe) {
  EXPECT_EQ(Run(), kExitOk);
  EXPECT_FALSE(router_.request().has_response_format());
  options_.format.json_object = true;
  EXPECT_EQ(Run(), kExitOk);
  EXPECT_TRUE(router_.request().response_format().has_json_object());
  options_.format = {.regex = "[ab]+"};
  EXPECT_EQ(Run(), kExitOk);
  EXPECT_EQ(router_.request().response_format().regex(), "[ab]+");
  options_.format = {.choices = {"yes", "no"}};
  EXPECT_EQ(Run(), kExitOk);
  EXPECT_THAT(router_.request().response_format().choice().texts(),
              testing::ElementsAre("yes", "no"));
  const test::ScratchDir scratch;
  options_.format = {.json_schema_file = scratch.path() + "/schema.json"};
  EXPECT_EQ(Run(), kExitFailed);
  EXPECT_THAT(err_, HasSubstr(options_.format.json_schema_file));
  std::ofstream(options_.format.json_schema_file) << R"({"type": "null"})";
  EXPECT_EQ(Run(), kExitOk);
  EXPECT_EQ(router_.request().response_format().json_schema(),
            R"({"type": "null"})");
}

TEST_F(GenerateTest, JsonIsOneResponseALine) {
  options_.json = true;
  EXPECT_EQ(Run(), kExitOk);
  const std::vector<std::string> lines = absl::StrSplit(out_, '\n');
  ASSERT_EQ(lines.size(), 4u) << out_;
  EXPECT_EQ(lines[0], R"({"text":"there","token_ids":[11]})");
  v1::GenerateResponse last;
  ASSERT_TRUE(
      google::protobuf::util::JsonStringToMessage(lines[2], &last).ok());
  EXPECT_EQ(last.finish_reason(), v1::FINISH_REASON_STOP);
  EXPECT_EQ(lines[3], "");
  EXPECT_EQ(err_, "");
}

TEST_F(GenerateTest, SendsTheApiKey) {
  EXPECT_EQ(Run(), kExitOk);
  EXPECT_EQ(router_.authorization(), "");
  options_.router.api_key = "k-1";
  EXPECT_EQ(Run(), kExitOk);
  EXPECT_EQ(router_.authorization(), "Bearer k-1");
  options_.router.api_key = "k\n";
  EXPECT_EQ(Run(), kExitFailed);
  EXPECT_THAT(err_, StartsWith("baton generate: --api-key may hold"));
}

TEST_F(GenerateTest, NobodyListens) {
  server_.server->Shutdown();
  EXPECT_EQ(Run(), kExitFailed);
  EXPECT_THAT(err_, StartsWith("baton generate: cannot connect to " +
                               options_.router.address + ": "));
  EXPECT_THAT(err_, EndsWith("(is `baton up` running?)\n"));
}

TEST_F(GenerateTest, PassesOnTheRoutersErrorAndHint) {
  router_.set_answer([](grpc::ServerContext* context, Writer* writer) {
    WriteToken(writer, 11, "there");
    context->AddTrailingMetadata("retry-after-ms", "250");
    return grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, "queue full");
  });
  EXPECT_EQ(Run(), kExitFailed);
  EXPECT_EQ(out_, "there\n");
  EXPECT_EQ(err_,
            "baton generate: RESOURCE_EXHAUSTED: queue full (come back in 250 "
            "ms)\n");
}

TEST_F(GenerateTest, AStreamWithoutAnEndIsAnError) {
  router_.set_answer([](grpc::ServerContext*, Writer* writer) {
    WriteToken(writer, 11, "there");
    return grpc::Status::OK;
  });
  EXPECT_EQ(Run(), kExitFailed);
  EXPECT_THAT(err_, HasSubstr("without an end"));
}

TEST_F(GenerateTest, CtrlCCancelsTheCall) {
  router_.set_answer([](grpc::ServerContext* context, Writer* writer) {
    WriteToken(writer, 11, "there");
    kill(getpid(), SIGINT);
    // Ends when the cancel arrives: writes then fail.
    v1::GenerateResponse more;
    while (writer->Write(more)) {
    }
    return grpc::Status::CANCELLED;
  });
  EXPECT_EQ(Run(), kExitInterrupted);
  EXPECT_THAT(err_, HasSubstr("cancelled"));
}

TEST_F(GenerateTest, AReaderThatLeavesEndsTheCall) {
  router_.set_answer([](grpc::ServerContext*, Writer* writer) {
    v1::GenerateResponse more;
    more.set_text("and then ");
    while (writer->Write(more)) {
    }
    return grpc::Status::CANCELLED;
  });
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  close(ends[0]);
  std::FILE* out = fdopen(ends[1], "w");
  std::FILE* err = std::tmpfile();
  EXPECT_EQ(RunGenerate(options_, out, err), kExitFailed);
  EXPECT_EQ(ReadBack(err), "baton generate: cannot write the output\n");
  std::fclose(out);
  std::fclose(err);
}

TEST_F(GenerateTest, ATimeoutEndsTheCall) {
  options_.timeout_seconds = 0.2;
  router_.set_answer([](grpc::ServerContext* context, Writer* writer) {
    v1::GenerateResponse more;
    while (writer->Write(more)) {
    }
    return grpc::Status::CANCELLED;
  });
  EXPECT_EQ(Run(), kExitFailed);
  EXPECT_THAT(err_, StartsWith("baton generate: DEADLINE_EXCEEDED"));
}

}  // namespace
}  // namespace baton::cli
