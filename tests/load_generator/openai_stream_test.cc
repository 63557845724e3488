#include "load_generator/openai_stream.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/json.h"

namespace baton::load_generator {
namespace {

using ::testing::HasSubstr;

TEST(OpenAiStreamTest, ReadsAnAnswer) {
  OpenAiStream stream;
  EXPECT_FALSE(stream.Take(
      R"({"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]})"));
  EXPECT_TRUE(stream.Take(R"({"choices":[{"delta":{"content":"Hi"}}]})"));
  EXPECT_TRUE(stream.Take(R"({"choices":[{"text":" there"}],"usage":null})"));
  EXPECT_FALSE(
      stream.Take(R"({"choices":[{"text":"","finish_reason":"length"}]})"));
  EXPECT_FALSE(stream.Take(
      R"({"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":2,)"
      R"("prompt_tokens_details":{"cached_tokens":3}}})"));
  EXPECT_FALSE(stream.Take("[DONE]"));
  const TargetEnd end = stream.End();
  EXPECT_EQ(end.kind, OutcomeKind::kFinished) << end.error;
  EXPECT_EQ(end.prompt_tokens, 5);
  EXPECT_EQ(end.cached_tokens, 3);
  EXPECT_EQ(end.output_tokens, 2);
}

TEST(OpenAiStreamTest, AStreamWithoutItsEndFailed) {
  OpenAiStream stream;
  EXPECT_TRUE(stream.Take(R"({"choices":[{"text":"a"}]})"));
  EXPECT_EQ(stream.End().kind, OutcomeKind::kFailed);
  EXPECT_EQ(stream.End().error, "the stream ended early");
}

TEST(OpenAiStreamTest, AnErrorInTheStreamIsTheReason) {
  OpenAiStream stream;
  EXPECT_FALSE(stream.Take(R"({"error":{"message":"worker lost"}})"));
  EXPECT_FALSE(stream.Take("[DONE]"));
  EXPECT_EQ(stream.End().kind, OutcomeKind::kFailed);
  EXPECT_EQ(stream.End().error, "worker lost");
  OpenAiStream broken;
  EXPECT_FALSE(broken.Take("no JSON"));
  EXPECT_EQ(broken.End().kind, OutcomeKind::kFailed);
}

TEST(OpenAiStreamTest, StatusesAreOutcomes) {
  EXPECT_EQ(EndOfError(429, "").kind, OutcomeKind::kRejected);
  EXPECT_EQ(EndOfError(503, "").kind, OutcomeKind::kRejected);
  EXPECT_EQ(EndOfError(504, "").kind, OutcomeKind::kTimedOut);
  EXPECT_EQ(EndOfError(400, R"({"error":{"message":"n is 0"}})").error,
            "HTTP 400: n is 0");
  const TargetEnd end = EndOfError(502, std::string(5000, 'x') + "\xff");
  EXPECT_EQ(end.kind, OutcomeKind::kFailed);
  EXPECT_LT(end.error.size(), 400u);
}

TEST(OpenAiStreamTest, BodiesAreJson) {
  TargetRequest request;
  request.tokens = {5, 6};
  request.output_tokens = 9;
  auto body = nlohmann::json::parse(CompletionBody(request, "a\"b"));
  EXPECT_EQ(body["model"], "a\"b");
  EXPECT_EQ(body["prompt"], nlohmann::json({5, 6}));
  EXPECT_EQ(body["max_tokens"], 9);
  EXPECT_EQ(body["stream"], true);
  EXPECT_EQ(body["ignore_eos"], true);
  request.tokens.clear();
  request.text = "two words";
  body = nlohmann::json::parse(CompletionBody(request, "m"));
  EXPECT_EQ(body["prompt"], "two words");
}

}  // namespace
}  // namespace baton::load_generator
