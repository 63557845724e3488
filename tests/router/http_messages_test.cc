// Anthropic's Messages API of a real router among fake workers.
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/json.h"
#include "tests/router/http_api_fixture.h"

namespace baton::router {
namespace {

using nlohmann::json;
using test::HttpClient;
using testing::ElementsAre;
using testing::HasSubstr;

class HttpMessagesTest : public HttpApiTest {
 protected:
  HttpMessagesTest() { UseTemplate(kThinkAndCallTemplate); }

  static json Question(const std::string& text) {
    return {{"model", "stories"},
            {"max_tokens", 50},
            {"messages", {{{"role", "user"}, {"content", text}}}}};
  }

  // What the model is made to write, and the message.
  json Ask(const json& request, const std::string& output,
           v1::FinishReason finish = v1::FINISH_REASON_STOP) {
    client_->Send("POST", "/v1/messages", request.dump());
    Answer(Accept(), Ids(output), finish);
    const HttpClient::Reply reply = client_->ReadReply();
    EXPECT_EQ(reply.status, 200) << reply.body;
    const json message = json::parse(reply.body);
    EXPECT_EQ(reply.Header("request-id"), message.at("id"));
    return message;
  }

  // The same as a stream: its events.
  std::vector<json> Stream(json request, const std::string& output) {
    request["stream"] = true;
    client_->Send("POST", "/v1/messages?beta=true", request.dump());
    Answer(Accept(), Ids(output), v1::FINISH_REASON_STOP);
    EXPECT_EQ(client_->ReadHead().status, 200);
    std::vector<json> events;
    while (const auto data = client_->ReadEvent()) {
      events.push_back(json::parse(*data));
      EXPECT_EQ(events.back().at("type"), client_->event_name());
    }
    return events;
  }
};

TEST_F(HttpMessagesTest, AStreamThatWaitsHasPings) {
  options_.http.quiet_interval = absl::Milliseconds(5);
  Start();
  json request = Question("Hi");
  request["stream"] = true;
  client_->Send("POST", "/v1/messages", request.dump());
  const uint64_t attempt = Accept();
  EXPECT_EQ(client_->ReadHead().status, 200);
  EXPECT_EQ(json::parse(*client_->ReadEvent())["type"], "ping");
  EXPECT_EQ(client_->event_name(), "ping");
  prefill_->SendFailure(attempt, "broken", /*retryable=*/false);
  std::vector<std::string> types;
  while (const auto data = client_->ReadEvent()) {
    const std::string type = json::parse(*data)["type"];
    if (type != "ping") types.push_back(type);
  }
  EXPECT_THAT(types, ElementsAre("message_start", "error"));
}

TEST_F(HttpMessagesTest, AnswersAndStreams) {
  ServeMetrics();
  Start();
  json request = Question("Hi");
  request["system"] = "Be kind.";
  const std::string text = "Once there was a cat.";
  const json whole = Ask(request, text);
  EXPECT_EQ(whole.at("type"), "message");
  EXPECT_EQ(whole.at("model"), "stories");
  EXPECT_EQ(whole.at("stop_reason"), "end_turn");
  ASSERT_EQ(whole.at("content").size(), 1u);
  EXPECT_EQ(whole.at("content")[0].at("text"), text);
  const json usage = whole.at("usage");
  EXPECT_EQ(usage.at("output_tokens"), Ids(text).size());
  EXPECT_EQ(usage.at("input_tokens"), sequence_.prompt_length());
  EXPECT_THAT(whole.at("id").get<std::string>(), testing::StartsWith("msg_"));

  const std::vector<json> events = Stream(request, text);
  EXPECT_EQ(events.front().at("type"), "message_start");
  EXPECT_EQ(events.front().at("message").at("usage").at("input_tokens"),
            sequence_.prompt_length());
  EXPECT_EQ(events.back().at("type"), "message_stop");
  EXPECT_EQ(events[events.size() - 2].at("usage"), usage);
  std::string said;
  for (const json& event : events) {
    if (event.at("type") == "content_block_delta") {
      said += event.at("delta").at("text").get<std::string>();
    }
  }
  EXPECT_EQ(said, text);
  EXPECT_EQ(Ask(request, text, v1::FINISH_REASON_LENGTH).at("stop_reason"),
            "max_tokens");

  EXPECT_EQ(
      Metric("baton_api_calls_total{model_name=\"stories\",role=\"router\","
             "worker=\"router\",api=\"messages\"}"),
      3);

  // The same prompt, counted.
  const HttpClient::Reply counted =
      client_->Post("/v1/messages/count_tokens", request.dump());
  EXPECT_EQ(counted.status, 200);
  EXPECT_EQ(json::parse(counted.body),
            json({{"input_tokens", sequence_.prompt_length()}}));
}

TEST_F(HttpMessagesTest, AStopSequenceIsNamed) {
  Start();
  json request = Question("Hi");
  request["stop_sequences"] = {"cat"};
  client_->Send("POST", "/v1/messages", request.dump());
  const uint64_t attempt = Accept();
  const std::vector<uint32_t> ids = Ids("Once there was a cat. The");
  for (size_t i = 0; i < ids.size(); ++i) {
    (i == 0 ? prefill_ : decode_)
        ->SendToken(attempt, static_cast<uint32_t>(i), ids[i]);
  }
  const json message = json::parse(client_->ReadReply().body);
  EXPECT_EQ(message.at("stop_reason"), "stop_sequence");
  EXPECT_EQ(message.at("stop_sequence"), "cat");
  EXPECT_EQ(message.at("content")[0].at("text"), "Once there was a ");
}

TEST_F(HttpMessagesTest, ThinksCallsAndGoesOn) {
  Start();
  json request = Question("1 + 2?");
  request["max_tokens"] = 200;
  request["tools"] = json::parse(R"([{"name": "add", "input_schema": {
      "type": "object", "properties": {}}}])");
  const std::string output =
      "I add.</think>\n\nLet me see. <tool_call>\n"
      R"({"name": "add", "arguments": {"a": 1}})"
      "\n</tool_call>";
  const json whole = Ask(request, output);
  const json blocks = whole.at("content");
  ASSERT_EQ(blocks.size(), 3u) << blocks;
  EXPECT_EQ(blocks[0].at("thinking"), "I add.");
  EXPECT_THAT(blocks[1].at("text").get<std::string>(),
              HasSubstr("Let me see."));
  EXPECT_EQ(blocks[2].at("type"), "tool_use");
  EXPECT_EQ(blocks[2].at("name"), "add");
  EXPECT_EQ(blocks[2].at("input"), json({{"a", 1}}));
  EXPECT_THAT(blocks[2].at("id").get<std::string>(),
              testing::StartsWith("toolu_"));
  EXPECT_EQ(whole.at("stop_reason"), "tool_use");

  std::string input;
  for (const json& event : Stream(request, output)) {
    if (event.at("type") != "content_block_delta") continue;
    const json& delta = event.at("delta");
    if (delta.at("type") == "input_json_delta") {
      input += delta.at("partial_json").get<std::string>();
    }
  }
  EXPECT_EQ(json::parse(input), json({{"a", 1}}));

  // What it said, as it said it, and what came of the call.
  json next = request;
  next["messages"].push_back({{"role", "assistant"}, {"content", blocks}});
  next["messages"].push_back({{"role", "user"},
                              {"content",
                               {{{"type", "tool_result"},
                                 {"tool_use_id", blocks[2].at("id")},
                                 {"content", "3"}}}}});
  EXPECT_EQ(
      Ask(next, "Easy.</think>\n\nIt is 3.").at("content").back().at("text"),
      "It is 3.");
}

// The prompt is counted as the text that its template makes of it.
TEST_F(HttpMessagesTest, AnAnswerGoesOn) {
  Start();
  json request = Question("Hi");
  request["messages"].push_back(
      {{"role", "assistant"}, {"content", "Once there was"}});
  const json message = Ask(request, " a cat.");
  EXPECT_EQ(message.at("content")[0].at("text"), " a cat.");
  EXPECT_EQ(message.at("usage").at("input_tokens"),
            Ids("[user] Hi[assistant] Once there was").size());
  json chat = request;
  chat["continue_final_message"] = true;
  client_->Send("POST", "/v1/chat/completions", chat.dump());
  Answer(Accept(), Ids(" a cat."), v1::FINISH_REASON_STOP);
  EXPECT_EQ(
      json::parse(client_->ReadReply().body).at("usage").at("prompt_tokens"),
      message.at("usage").at("input_tokens"));
  chat["add_generation_prompt"] = true;
  const HttpClient::Reply reply =
      client_->Post("/v1/chat/completions", chat.dump());
  EXPECT_EQ(reply.status, 400);
  EXPECT_EQ(json::parse(reply.body).at("error").at("param"),
            "continue_final_message");
}

TEST_F(HttpMessagesTest, ErrorsAreAnthropics) {
  Start();
  const auto error = [](const HttpClient::Reply& reply) {
    const json body = json::parse(reply.body);
    EXPECT_EQ(body.at("type"), "error");
    return body.at("error");
  };
  HttpClient::Reply reply = client_->Post(
      "/v1/messages",
      R"({"messages": [{"role": "user", "content": [{"type": "image"}]}]})");
  EXPECT_EQ(reply.status, 400);
  EXPECT_EQ(error(reply).at("type"), "invalid_request_error");
  EXPECT_THAT(error(reply).at("message").get<std::string>(),
              HasSubstr("messages[0].content[0].type is \"image\""));
  EXPECT_EQ(json::parse(reply.body).at("request_id"),
            reply.Header("request-id"));
  json request = Question("Hi");
  request["model"] = "other";
  reply = client_->Post("/v1/messages", request.dump());
  EXPECT_EQ(reply.status, 404);
  EXPECT_EQ(error(reply).at("type"), "not_found_error");
  reply = client_->Post("/v1/messages/count_tokens", request.dump());
  EXPECT_EQ(reply.status, 404);
  EXPECT_EQ(error(reply).at("type"), "not_found_error");
  reply = client_->Post("/v1/messages/count_tokens", "{}");
  EXPECT_EQ(reply.status, 400);
  EXPECT_THAT(error(reply).at("message").get<std::string>(),
              HasSubstr("messages is missing"));
  client_->Send("GET", "/v1/messages", "");
  reply = client_->ReadReply();
  EXPECT_EQ(reply.status, 405);
  EXPECT_EQ(error(reply).at("type"), "invalid_request_error");
}

TEST_F(HttpMessagesTest, AFailureInMidStreamIsTheLastEvent) {
  options_.flow.max_attempts = 1;
  Start();
  json request = Question("Hi");
  request["stream"] = true;
  client_->Send("POST", "/v1/messages", request.dump());
  const uint64_t attempt = Accept();
  prefill_->SendToken(attempt, 0, Ids(" a")[0]);
  EXPECT_EQ(client_->ReadHead().status, 200);
  ASSERT_TRUE(client_->ReadEvent().has_value());
  EXPECT_EQ(client_->event_name(), "message_start");
  decode_->SendFailure(attempt, "it broke", /*retryable=*/true);
  std::string last;
  while (const auto event = client_->ReadEvent()) last = *event;
  EXPECT_EQ(client_->event_name(), "error");
  EXPECT_THAT(json::parse(last).at("error").at("message").get<std::string>(),
              HasSubstr("it broke"));
}

TEST_F(HttpMessagesTest, ModelsAreForClientsOfBoth) {
  Start();
  client_->Send("GET", "/v1/models", "");
  const json models = json::parse(client_->ReadReply().body);
  EXPECT_EQ(models.at("object"), "list");
  EXPECT_EQ(models.at("has_more"), false);
  EXPECT_EQ(models.at("first_id"), "stories");
  EXPECT_EQ(models.at("last_id"), "stories");
  const json model = models.at("data")[0];
  EXPECT_EQ(model.at("object"), "model");
  EXPECT_EQ(model.at("type"), "model");
  EXPECT_EQ(model.at("display_name"), "stories");
  EXPECT_THAT(model.at("created_at").get<std::string>(),
              testing::MatchesRegex("20..-..-..T..:..:..Z"));
}

}  // namespace
}  // namespace baton::router
