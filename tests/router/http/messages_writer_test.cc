#include "router/http/messages_writer.h"

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/json.h"
#include "router/http/openai_error.h"
#include "router/invalid_field.h"

namespace baton::router::http {
namespace {

using nlohmann::json;
using testing::ElementsAre;

constexpr AnswerUsage kMessageUsage = {
    .prompt_tokens = 10, .output_tokens = 4, .cached_prompt_tokens = 3};

MessagesWriter NewWriter() {
  return MessagesWriter({.chat = true, .id = "msg_1", .model = "m"});
}

std::vector<json> DataOf(const std::string& stream) {
  std::vector<json> events;
  for (absl::string_view one : absl::StrSplit(stream, "\n\n")) {
    if (one.empty()) continue;
    const std::vector<absl::string_view> lines = absl::StrSplit(one, '\n');
    EXPECT_EQ(lines.size(), 2u) << one;
    absl::string_view name = lines[0], data = lines[1];
    EXPECT_TRUE(absl::ConsumePrefix(&name, "event: ")) << one;
    EXPECT_TRUE(absl::ConsumePrefix(&data, "data: ")) << one;
    events.push_back(json::parse(data));
    EXPECT_EQ(events.back().at("type"), std::string(name));
  }
  return events;
}

// What a client makes of the events: a message.
json Assembled(const std::vector<json>& events) {
  json message;
  std::string input;
  for (const json& event : events) {
    const std::string type = event.at("type");
    if (type == "message_start") {
      message = event.at("message");
    } else if (type == "content_block_start") {
      EXPECT_EQ(event.at("index"), message.at("content").size());
      message.at("content").push_back(event.at("content_block"));
      input.clear();
    } else if (type == "content_block_delta") {
      json& block = message.at("content").at(event.at("index").get<size_t>());
      const json& delta = event.at("delta");
      const std::string kind = delta.at("type");
      if (kind == "input_json_delta") {
        input += delta.at("partial_json").get<std::string>();
        continue;
      }
      const char* const field = kind == "text_delta" ? "text" : "thinking";
      block.at(field) = block.at(field).get<std::string>() +
                        delta.at(field).get<std::string>();
    } else if (type == "content_block_stop") {
      json& block = message.at("content").at(event.at("index").get<size_t>());
      if (block.at("type") == "tool_use" && !input.empty()) {
        block.at("input") = json::parse(input);
      }
    } else if (type == "message_delta") {
      message.update(event.at("delta"));
      message.at("usage").update(event.at("usage"));
    }
  }
  return message;
}

void SayAll(MessagesWriter& writer, std::string* stream) {
  writer.Begin(10, stream);
  writer.Reasoning("I \"add\"", stream);
  writer.Reasoning(".", stream);
  writer.Text("It ", {}, stream);
  writer.Text("", {}, stream);
  writer.Text("is", {}, stream);
  writer.CallBegun("toolu_1", "add", stream);
  writer.CallArguments("{\"a\"", stream);
  writer.CallArguments(": 1}", stream);
  writer.CallBegun("toolu_2", "sub", stream);
  writer.Finish({.reason = v1::FINISH_REASON_STOP, .usage = kMessageUsage},
                stream);
}

TEST(MessagesWriterTest, EventsAddUpToTheBody) {
  MessagesWriter writer = NewWriter();
  std::string stream;
  SayAll(writer, &stream);
  const std::vector<json> events = DataOf(stream);
  std::vector<std::string> types;
  for (const json& event : events) types.push_back(event.at("type"));
  EXPECT_THAT(types, ElementsAre("message_start", "content_block_start",
                                 "content_block_delta", "content_block_delta",
                                 "content_block_stop", "content_block_start",
                                 "content_block_delta", "content_block_delta",
                                 "content_block_stop", "content_block_start",
                                 "content_block_delta", "content_block_delta",
                                 "content_block_stop", "content_block_start",
                                 "content_block_stop", "message_delta",
                                 "message_stop"));
  const json body = json::parse(writer.Body());
  EXPECT_EQ(Assembled(events), body);
  MessagesWriter whole = NewWriter();
  SayAll(whole, nullptr);
  EXPECT_EQ(whole.Body(), writer.Body());
  EXPECT_EQ(body, json::parse(R"({
    "id": "msg_1", "type": "message", "role": "assistant", "model": "m",
    "content": [
      {"type": "thinking", "thinking": "I \"add\".", "signature": ""},
      {"type": "text", "text": "It is", "citations": null},
      {"type": "tool_use", "id": "toolu_1", "name": "add", "input": {"a": 1}},
      {"type": "tool_use", "id": "toolu_2", "name": "sub", "input": {}}],
    "stop_reason": "tool_use", "stop_sequence": null,
    "usage": {"input_tokens": 7, "cache_creation_input_tokens": 0,
              "cache_read_input_tokens": 3, "output_tokens": 4}})"));
  const json begun = events[0].at("message");
  EXPECT_EQ(begun.at("stop_reason"), nullptr);
  EXPECT_EQ(begun.at("usage").at("input_tokens"), 10);
  EXPECT_EQ(begun.at("usage").at("output_tokens"), 0);
}

TEST(MessagesWriterTest, SaysWhyItStopped) {
  const auto stopped = [](const AnswerEnd& end) {
    MessagesWriter writer = NewWriter();
    writer.Begin(1, nullptr);
    writer.CallBegun("toolu_1", "add", nullptr);
    writer.CallArguments("{\"a\": \"b", nullptr);
    writer.Finish(end, nullptr);
    return json::parse(writer.Body());
  };
  json body = stopped({.reason = v1::FINISH_REASON_LENGTH, .cut = true});
  EXPECT_EQ(body.at("stop_reason"), "max_tokens");
  // Not JSON, and yet an object.
  EXPECT_EQ(body.at("content")[0].at("input"),
            json({{"INVALID_JSON", "{\"a\": \"b"}}));
  body =
      stopped({.reason = v1::FINISH_REASON_STOP, .stop = "\n#", .cut = true});
  EXPECT_EQ(body.at("stop_reason"), "stop_sequence");
  EXPECT_EQ(body.at("stop_sequence"), "\n#");
  body = stopped({.reason = v1::FINISH_REASON_STOP, .cut = true});
  EXPECT_EQ(body.at("stop_reason"), "end_turn");
  EXPECT_EQ(body.at("stop_sequence"), nullptr);
}

TEST(MessagesWriterTest, AnAnswerWithoutAWordHasNoBlocks) {
  MessagesWriter writer = NewWriter();
  std::string stream;
  writer.Begin(10, &stream);
  writer.Finish({.reason = v1::FINISH_REASON_STOP, .usage = kMessageUsage},
                &stream);
  const json body = json::parse(writer.Body());
  EXPECT_EQ(body.at("content"), json::array());
  EXPECT_EQ(body.at("stop_reason"), "end_turn");
  EXPECT_EQ(Assembled(DataOf(stream)), body);
}

TEST(MessagesWriterTest, AFailureIsTheLastEvent) {
  MessagesWriter writer = NewWriter();
  std::string stream;
  writer.Begin(1, &stream);
  writer.Text("It", {}, &stream);
  writer.Fail(absl::UnavailableError("no \"worker\""), &stream);
  const std::vector<json> events = DataOf(stream);
  EXPECT_EQ(events.back(), json::parse(R"({"type": "error", "error": {
      "type": "overloaded_error", "message": "no \"worker\""}})"));
}

TEST(MessagesWriterTest, ErrorsAreAnthropics) {
  Response openai =
      ErrorResponse(InvalidField("top_p", "is \"x\""), std::nullopt);
  openai.headers.emplace_back("x-request-id", "mine");
  const Response response = AsMessagesError(openai);
  EXPECT_EQ(response.status, 400);
  EXPECT_EQ(json::parse(response.body), json::parse(R"({"type": "error",
      "error": {"type": "invalid_request_error", "message": "top_p is \"x\""},
      "request_id": "mine"})"));
  EXPECT_THAT(response.headers,
              testing::Contains(testing::Pair("request-id", "mine")));
  const auto type = [](const absl::Status& status) {
    return json::parse(
               AsMessagesError(ErrorResponse(status, std::nullopt)).body)
        .at("error")
        .at("type");
  };
  EXPECT_EQ(type(absl::UnauthenticatedError("a")), "authentication_error");
  EXPECT_EQ(type(absl::PermissionDeniedError("a")), "permission_error");
  EXPECT_EQ(type(absl::NotFoundError("a")), "not_found_error");
  EXPECT_EQ(type(absl::ResourceExhaustedError("a")), "rate_limit_error");
  EXPECT_EQ(type(absl::UnavailableError("a")), "overloaded_error");
  EXPECT_EQ(type(absl::DeadlineExceededError("a")), "timeout_error");
  EXPECT_EQ(type(absl::InternalError("a")), "api_error");
  // A body that is none of ours stays what it says.
  EXPECT_EQ(json::parse(AsMessagesError({.status = 500, .body = "so"}).body)
                .at("error")
                .at("message"),
            "so");
}

}  // namespace
}  // namespace baton::router::http
