#include "router/http/openai_writer.h"

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/json.h"

namespace baton::router::http {
namespace {

using ::testing::ElementsAre;

TEST(TextOffsetTest, CountsACharacterOnceWhateverItsTokens) {
  TextOffset offset;
  std::vector<int64_t> begins;
  for (const char* token :
       {"a", "\xF0\x9F\x99", "\x82", " ok", "\xC3", "\xA9", "!"}) {
    begins.push_back(offset.characters());
    offset.Add(token);
  }
  EXPECT_THAT(begins, ElementsAre(0, 1, 1, 2, 5, 5, 6));
  EXPECT_EQ(offset.characters(), 7);
}

TEST(TextOffsetTest, WhatIsNoTextCountsAsItIsShown) {
  TextOffset offset;
  offset.Add("\xFF\xFE");  // two U+FFFD
  EXPECT_EQ(offset.characters(), 2);
  offset.Add("\xE2\x82");  // a beginning that
  offset.Add("z");         // nothing continues
  EXPECT_EQ(offset.characters(), 4);
}

// The offsets of a whole answer index its text.
TEST(OpenAiWriterTest, OffsetsIndexTheText) {
  Choice choice;
  choice.text = "say: \xF0\x9F\x99\x82 ok";
  choice.text_offset.Add("say: ");
  choice.has_logprobs = true;
  for (const char* bytes : {"\xF0\x9F\x99", "\x82", " ok"}) {
    v1::TokenLogprobs token;
    token.mutable_chosen()->set_token(bytes);
    choice.logprobs.push_back(token);
  }
  const nlohmann::json body = nlohmann::json::parse(
      WholeBody({.chat = false, .id = "c", .model = "m"}, {choice}, {}));
  EXPECT_EQ(body["choices"][0]["logprobs"]["text_offset"],
            nlohmann::json({5, 5, 6}));
}

TEST(OpenAiWriterTest, CallsAreNoContent) {
  Choice choice;
  choice.tool_calls = {{"call_1", "f\"", "{\"x\": 1}"}, {"call_2", "g", "{}"}};
  choice.finish_reason = v1::FINISH_REASON_STOP;
  const auto written = [&] {
    return nlohmann::json::parse(WholeBody(
        {.chat = true, .id = "c", .model = "m"}, {choice}, {}))["choices"][0];
  };
  EXPECT_EQ(written()["message"], nlohmann::json::parse(R"({
    "role": "assistant", "content": null, "refusal": null, "tool_calls": [
      {"id": "call_1", "type": "function",
       "function": {"name": "f\"", "arguments": "{\"x\": 1}"}},
      {"id": "call_2", "type": "function",
       "function": {"name": "g", "arguments": "{}"}}]})"));
  EXPECT_EQ(written()["finish_reason"], "tool_calls");
  choice.text = "Wait.";
  choice.finish_reason = v1::FINISH_REASON_LENGTH;
  EXPECT_EQ(written()["message"]["content"], "Wait.");
  EXPECT_EQ(written()["finish_reason"], "length");
}

TEST(OpenAiWriterTest, CallsComeInPieces) {
  const ChunkWriter writer({.chat = true, .id = "c", .model = "m"},
                           /*usage_follows=*/true);
  const auto delta = [](const std::string& event) {
    EXPECT_EQ(event.substr(0, 6), "data: ");
    return nlohmann::json::parse(event.substr(6))["choices"][0]["delta"];
  };
  std::string begun;
  writer.ToolCallBegun(0, 3, "call_1", "f", &begun);
  EXPECT_EQ(delta(begun), nlohmann::json::parse(R"({"tool_calls": [
    {"index": 3, "id": "call_1", "type": "function",
     "function": {"name": "f", "arguments": ""}}]})"));
  std::string more;
  writer.ToolCallArguments(0, 3, "{\"x\":", &more);
  EXPECT_EQ(delta(more), nlohmann::json::parse(R"({"tool_calls": [
    {"index": 3, "function": {"arguments": "{\"x\":"}}]})"));
}

}  // namespace
}  // namespace baton::router::http
