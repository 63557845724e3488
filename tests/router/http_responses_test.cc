// OpenAI's Responses API of a real router among fake workers.
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "common/json.h"
#include "tests/router/http_api_fixture.h"

namespace baton::router {
namespace {

using nlohmann::json;
using test::HttpClient;
using testing::HasSubstr;

class HttpResponsesTest : public HttpApiTest {
 protected:
  HttpResponsesTest() { UseTemplate(kThinkAndCallTemplate); }

  static json WithTool(json request) {
    request["tools"] = json::parse(R"([{"type": "function", "name": "add",
      "parameters": {"type": "object", "properties": {}}}])");
    return request;
  }

  // What the model is made to write, and the response.
  json Ask(const json& request, const std::string& output,
           v1::FinishReason finish = v1::FINISH_REASON_STOP) {
    client_->Send("POST", "/v1/responses", request.dump());
    Answer(Accept(), Ids(output), finish);
    const HttpClient::Reply reply = client_->ReadReply();
    EXPECT_EQ(reply.status, 200) << reply.body;
    return json::parse(reply.body);
  }

  std::vector<json> ReadEvents() {
    std::vector<json> events;
    while (const auto data = client_->ReadEvent()) {
      events.push_back(json::parse(*data));
      EXPECT_EQ(events.back().at("type"), client_->event_name());
      EXPECT_EQ(events.back().at("sequence_number"), events.size() - 1);
    }
    return events;
  }

  // The same as a stream: the last event's response. The text of all deltas is
  // in said_.
  json AskStream(json request, const std::string& output,
                 v1::FinishReason finish = v1::FINISH_REASON_STOP) {
    request["stream"] = true;
    client_->Send("POST", "/v1/responses", request.dump());
    Answer(Accept(), Ids(output), finish);
    EXPECT_EQ(client_->ReadHead().status, 200);
    const std::vector<json> events = ReadEvents();
    EXPECT_EQ(events.front().at("type"), "response.created");
    said_.clear();
    for (const json& event : events) {
      if (event.at("type") == "response.output_text.delta") {
        said_ += event.at("delta").get<std::string>();
      }
    }
    return events.back().at("response");
  }

  std::string said_;
};

TEST_F(HttpResponsesTest, AnswersAndStreams) {
  Start();
  const json request = {{"model", "stories"},
                        {"input", "Hi"},
                        {"instructions", "Be kind."},
                        {"max_output_tokens", 50}};
  const json whole = Ask(request, "Once there was a cat.");
  EXPECT_EQ(whole.at("object"), "response");
  EXPECT_EQ(whole.at("status"), "completed");
  EXPECT_EQ(whole.at("instructions"), "Be kind.");
  EXPECT_EQ(whole.at("max_output_tokens"), 50);
  ASSERT_EQ(whole.at("output").size(), 1u);
  const json message = whole.at("output")[0];
  EXPECT_EQ(message.at("type"), "message");
  EXPECT_EQ(message.at("role"), "assistant");
  const std::string text = message.at("content")[0].at("text");
  EXPECT_EQ(text, "Once there was a cat.");
  const json usage = whole.at("usage");
  EXPECT_EQ(usage.at("output_tokens"), Ids(text).size());
  EXPECT_EQ(usage.at("input_tokens"), sequence_.prompt_length());
  EXPECT_THAT(whole.at("id").get<std::string>(), testing::StartsWith("resp_"));

  const json streamed = AskStream(request, text);
  EXPECT_EQ(said_, text);
  EXPECT_EQ(streamed.at("status"), "completed");
  EXPECT_EQ(streamed.at("output")[0].at("content"), message.at("content"));
  EXPECT_EQ(streamed.at("usage"), usage);

  const json cut = AskStream(request, text, v1::FINISH_REASON_LENGTH);
  EXPECT_EQ(cut.at("status"), "incomplete");
  EXPECT_EQ(cut.at("incomplete_details").at("reason"), "max_output_tokens");
}

TEST_F(HttpResponsesTest, ThinksCallsAndGoesOn) {
  Start();
  const json request = WithTool({{"input", "1 + 2?"}});
  const std::string output =
      "I add.</think>\n\nLet me see. <tool_call>\n"
      R"({"name": "add", "arguments": {"a": 1}})"
      "\n</tool_call>";
  const json whole = Ask(request, output);
  const json items = whole.at("output");
  ASSERT_EQ(items.size(), 3u) << items;
  EXPECT_EQ(items[0].at("type"), "reasoning");
  EXPECT_EQ(items[0].at("content")[0].at("text"), "I add.");
  EXPECT_THAT(items[1].at("content")[0].at("text").get<std::string>(),
              HasSubstr("Let me see."));
  EXPECT_EQ(items[2].at("type"), "function_call");
  EXPECT_EQ(items[2].at("name"), "add");
  EXPECT_EQ(json::parse(items[2].at("arguments").get<std::string>()),
            json({{"a", 1}}));
  EXPECT_GT(
      whole.at("usage").at("output_tokens_details").at("reasoning_tokens"), 0);
  const json streamed = AskStream(request, output).at("output");
  ASSERT_EQ(streamed.size(), 3u) << streamed;
  for (size_t i = 0; i < items.size(); ++i) {
    EXPECT_EQ(streamed[i].at("type"), items[i].at("type"));
  }
  EXPECT_EQ(streamed[2].at("arguments"), items[2].at("arguments"));

  // What it said, as it said it, and what came of the call.
  json next = WithTool({{"input", items}});
  const json question = {{"role", "user"}, {"content", "1 + 2?"}};
  next["input"].insert(next["input"].begin(), question);
  next["input"].push_back({{"type", "function_call_output"},
                           {"call_id", items[2].at("call_id")},
                           {"output", "3"}});
  EXPECT_EQ(Ask(next, "Easy.</think>\n\nIt is 3.")
                .at("output")
                .back()
                .at("content")[0]
                .at("text"),
            "It is 3.");
}

TEST_F(HttpResponsesTest, AClientsIdIsKept) {
  Start();
  client_->Send("POST", "/v1/responses", R"({"input": "Hi"})",
                {{"x-request-id", "mine"}});
  Answer(Accept(), Ids("Hello there."), v1::FINISH_REASON_STOP);
  const HttpClient::Reply reply = client_->ReadReply();
  EXPECT_EQ(json::parse(reply.body).at("id"), "mine");
  EXPECT_EQ(reply.Header("x-request-id"), "mine");
}

TEST_F(HttpResponsesTest, ErrorsAreOpenAis) {
  Start();
  HttpClient::Reply reply =
      client_->Post("/v1/responses", R"({"input": [{"type": "x"}]})");
  EXPECT_EQ(reply.status, 400);
  EXPECT_EQ(json::parse(reply.body).at("error").at("param"), "input[0].type");
  reply = client_->Post("/v1/responses", R"({"input": []})");
  EXPECT_EQ(reply.status, 400);
  EXPECT_EQ(json::parse(reply.body).at("error").at("param"), "input");
  reply = client_->Post("/v1/responses", R"({"input": "a", "model": "b"})");
  EXPECT_EQ(reply.status, 404);
  client_->Send("GET", "/v1/responses", "");
  reply = client_->ReadReply();
  EXPECT_EQ(reply.status, 405);
}

TEST_F(HttpResponsesTest, AFailureInMidStreamIsTheLastEvent) {
  options_.flow.max_attempts = 1;
  Start();
  client_->Send("POST", "/v1/responses", R"({"input": "Hi", "stream": true})");
  const uint64_t attempt = Accept();
  prefill_->SendToken(attempt, 0, Ids(" a")[0]);
  EXPECT_EQ(client_->ReadHead().status, 200);
  ASSERT_TRUE(client_->ReadEvent().has_value());
  EXPECT_EQ(client_->event_name(), "response.created");
  decode_->SendFailure(attempt, "it broke", /*retryable=*/true);
  std::string last;
  while (const auto event = client_->ReadEvent()) last = *event;
  EXPECT_EQ(client_->event_name(), "response.failed");
  const json response = json::parse(last).at("response");
  EXPECT_EQ(response.at("status"), "failed");
  EXPECT_THAT(response.at("error").at("message").get<std::string>(),
              HasSubstr("it broke"));
}

}  // namespace
}  // namespace baton::router
