// What a model thinks before it answers, over the OpenAI API of a real router
// among fake workers.
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

// As Qwen 3's, in short: it thinks by itself, unless it is told not to, or the
// prompt begins it.
constexpr char kTemplate[] =
    R"({%- for tool in tools or [] %}{"name": "{{ tool.function.name }}", )"
    R"("arguments": ...} in <tool_call>{% endfor -%}
{%- for m in messages %}[{{ m.role }}] {{ m.content.split('</think>')[-1] }}
{% endfor %}[assistant] {% if mode == 'never' %}<think>

</think>

{% elif mode == 'always' %}<think>
{% endif %})";

constexpr char kTools[] =
    R"([{"type": "function", "function": {"name": "add"}}])";

class HttpReasoningTest : public HttpApiTest {
 protected:
  HttpReasoningTest() { UseTemplate(kTemplate); }

  static json Request(const std::string& mode) {
    return {{"messages", {{{"role", "user"}, {"content", "Hi"}}}},
            {"chat_template_kwargs", {{"mode", mode}}},
            {"max_tokens", 200}};
  }

  // What the model is made to write, and what comes of it.
  json Ask(const json& request, const std::string& output,
           v1::FinishReason finish = v1::FINISH_REASON_STOP) {
    client_->Send("POST", "/v1/chat/completions", request.dump());
    Answer(Accept(), Ids(output), finish);
    const HttpClient::Reply reply = client_->ReadReply();
    EXPECT_EQ(reply.status, 200) << reply.body;
    return json::parse(reply.body);
  }

  // The same of a stream; also whether what it thinks all came before the rest.
  json AskStream(json request, const std::string& output,
                 v1::FinishReason finish = v1::FINISH_REASON_STOP) {
    request["stream"] = true;
    request["stream_options"] = {{"include_usage", true}};
    client_->Send("POST", "/v1/chat/completions", request.dump());
    Answer(Accept(), Ids(output), finish);
    EXPECT_EQ(client_->ReadHead().status, 200);
    json message = {{"content", ""}};
    json body;
    for (const json& chunk : ReadChunks()) {
      EXPECT_FALSE(chunk.contains("error")) << chunk;
      if (chunk.at("choices").empty()) {
        body["usage"] = chunk.at("usage");
        continue;
      }
      const json& choice = chunk["choices"][0];
      const json& delta = choice.at("delta");
      if (delta.contains("reasoning_content")) {
        EXPECT_EQ(message["content"], "");
        message["reasoning_content"] =
            message.value("reasoning_content", "") +
            delta["reasoning_content"].get<std::string>();
      }
      if (delta.contains("content")) {
        message["content"] = message["content"].get<std::string>() +
                             delta["content"].get<std::string>();
      }
      if (delta.contains("tool_calls")) {
        message["tool_calls"] = delta["tool_calls"];
      }
      body["choices"][0]["finish_reason"] = choice["finish_reason"];
    }
    body["choices"][0]["message"] = message;
    return body;
  }

  void Expect(const json& body, const json& reasoning, const json& content) {
    const json& message = body.at("choices").at(0).at("message");
    EXPECT_EQ(message.value("reasoning_content", json()), reasoning) << body;
    EXPECT_EQ(message.at("content"), content) << body;
  }
  void ExpectBoth(const json& request, const std::string& output,
                  const json& reasoning, const json& content) {
    Expect(Ask(request, output), reasoning, content);
    Expect(AskStream(request, output), reasoning, content);
  }
};

TEST_F(HttpReasoningTest, IsToldFromTheAnswer) {
  Start();
  const std::string output = "<think>\nHm.\n\nSo.\n</think>\n\nYes.";
  ExpectBoth(Request(""), output, "Hm.\n\nSo.", "Yes.");
  ExpectBoth(Request(""), "Yes. <think>", json(), "Yes. <think>");
  ExpectBoth(Request("always"), "Hm.\n</think>\n\nYes.", "Hm.", "Yes.");
  // It was told not to think: the markers mean nothing.
  ExpectBoth(Request("never"), output, json(), output);
}

TEST_F(HttpReasoningTest, CountsItsTokens) {
  ServeMetrics();
  Start();
  const std::string thought = "<think>\nHm.\n</think>";
  int64_t all = 0;
  for (const bool stream : {false, true}) {
    const json request = Request("");
    const std::string output = thought + "\n\nYes.";
    const json usage =
        (stream ? AskStream(request, output) : Ask(request, output))["usage"];
    EXPECT_EQ(usage["completion_tokens"], Ids(output).size());
    // Others may come with the last one.
    const int64_t tokens =
        usage["completion_tokens_details"]["reasoning_tokens"];
    EXPECT_GE(tokens, static_cast<int64_t>(Ids(thought).size()));
    EXPECT_LE(tokens, static_cast<int64_t>(Ids(output).size()));
    all += tokens;
  }
  EXPECT_EQ(Metric("baton_reasoning_tokens_total"), all);
  // Without thoughts there are none; of completions nothing is said.
  EXPECT_EQ(Ask(Request(""), "Yes it is.")["usage"]["completion_tokens_details"]
                                          ["reasoning_tokens"],
            0);
  client_->Send("POST", "/v1/completions", R"({"prompt": [5, 6]})");
  Answer(Accept(), Ids("<think>a</think>"), v1::FINISH_REASON_STOP);
  const json body = json::parse(client_->ReadReply().body);
  EXPECT_EQ(body["choices"][0]["text"], "<think>a</think>");
  EXPECT_FALSE(body["usage"].contains("completion_tokens_details"));
}

TEST_F(HttpReasoningTest, ThoughtsThatAreCutOff) {
  Start();
  for (const bool stream : {false, true}) {
    const json request = Request("always");
    const json body =
        stream ? AskStream(request, "Hm. </thi", v1::FINISH_REASON_LENGTH)
               : Ask(request, "Hm. </thi", v1::FINISH_REASON_LENGTH);
    Expect(body, "Hm. </thi", "");
    EXPECT_EQ(body["choices"][0]["finish_reason"], "length");
  }
}

TEST_F(HttpReasoningTest, ClientsMayWantItOtherwise) {
  Start();
  const std::string output = "<think>\nHm.\n</think>\n\nYes.";
  json request = Request("");
  request["include_reasoning"] = false;
  ExpectBoth(request, output, json(), "Yes.");
  request = Request("");
  request["separate_reasoning"] = false;
  ExpectBoth(request, output, json(), output);
  request["separate_reasoning"] = "no";
  const HttpClient::Reply reply =
      client_->Post("/v1/chat/completions", request.dump());
  EXPECT_EQ(reply.status, 400);
  EXPECT_EQ(json::parse(reply.body)["error"]["param"], "separate_reasoning");
}

TEST_F(HttpReasoningTest, CallsCountOnlyBehindIt) {
  Start();
  json request = Request("");
  request["tools"] = json::parse(kTools);
  const std::string call =
      "<tool_call>\n{\"name\": \"add\", \"arguments\": {}}\n</tool_call>";
  const std::string output =
      absl::StrCat("<think>\nOr ", call, "?\n</think>\n\n", call);
  for (const bool stream : {false, true}) {
    const json body =
        stream ? AskStream(request, output) : Ask(request, output);
    const json& message = body["choices"][0]["message"];
    EXPECT_EQ(message["reasoning_content"], absl::StrCat("Or ", call, "?"));
    EXPECT_EQ(message["tool_calls"].size(), 1u);
    EXPECT_EQ(body["choices"][0]["finish_reason"], "tool_calls");
  }
}

TEST_F(HttpReasoningTest, LogprobsOfAllTokens) {
  Start();
  json request = Request("");
  request["logprobs"] = true;
  const std::string output = "<think>\nHm.\n</think>\n\nYes.";
  const json body = Ask(request, output);
  EXPECT_EQ(body["choices"][0]["logprobs"]["content"].size(),
            Ids(output).size());
  request["stream"] = true;
  client_->Send("POST", "/v1/chat/completions", request.dump());
  Answer(Accept(), Ids(output), v1::FINISH_REASON_STOP);
  EXPECT_EQ(client_->ReadHead().status, 200);
  size_t tokens = 0;
  for (const json& chunk : ReadChunks()) {
    const json& logprobs = chunk.at("choices").at(0).at("logprobs");
    if (!logprobs.is_null()) tokens += logprobs.at("content").size();
  }
  EXPECT_EQ(tokens, Ids(output).size());
}

// What workers keep an answer to has room for thoughts where the model thinks.
TEST_F(HttpReasoningTest, FormatsAreOfTheAnswer) {
  Start();
  const auto grammar = [&](const std::string& mode, bool separate) {
    json request = Request(mode);
    request["guided_regex"] = "[0-9]+";
    request["separate_reasoning"] = separate;
    client_->Send("POST", "/v1/chat/completions", request.dump());
    const uint64_t attempt = Accept();
    Answer(attempt, Ids("</think>12"), v1::FINISH_REASON_STOP);
    EXPECT_EQ(client_->ReadReply().status, 200);
    return sequence_.grammar().SerializeAsString();
  };
  const std::string plain = grammar("never", true);
  EXPECT_EQ(grammar("never", false), plain);
  EXPECT_EQ(grammar("always", false), plain);
  const std::string always = grammar("always", true);
  EXPECT_NE(always, plain);
  const std::string possible = grammar("", true);
  EXPECT_NE(possible, plain);
  EXPECT_NE(possible, always);
}

}  // namespace
}  // namespace baton::router
