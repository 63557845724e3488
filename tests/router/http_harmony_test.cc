// A model whose answers are messages of Harmony, over the HTTP APIs of a real
// router among fake workers.
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "common/json.h"
#include "tests/router/harmony_model.h"
#include "tests/router/http_api_fixture.h"

namespace baton::router {
namespace {

using nlohmann::json;
using test::HttpClient;
using testing::HasSubstr;

constexpr char kThought[] = "<|channel|>analysis<|message|>Hm.<|end|>";
constexpr char kFinal[] =
    "<|start|>assistant<|channel|>final<|message|>Yes.<|return|>";
constexpr char kPreamble[] =
    "<|start|>assistant<|channel|>commentary<|message|>I look.<|end|>";
constexpr char kAddCall[] =
    "<|start|>assistant<|channel|>commentary to=functions.add "
    "<|constrain|>json<|message|>{\"a\": 1}<|call|>";

class HttpHarmonyTest : public HttpApiTest {
 protected:
  HttpHarmonyTest() {
    const std::string original = options_.model_dir;
    UseTemplate(kHarmonyTemplate);
    WriteHarmonyTokenizer(original, options_.model_dir);
    // As of models whose files name no token of Harmony.
    const std::string file = options_.model_dir + "/generation_config.json";
    std::filesystem::remove(file);
    std::ofstream(file) << R"({"eos_token_id": 2040})";
  }

  static json Question() {
    return {{"messages", {{{"role", "user"}, {"content", "Hi"}}}},
            {"max_tokens", 200}};
  }
  static json WithTool(json request) {
    request["tools"] = json::parse(
        R"([{"type": "function", "function": {"name": "add", "parameters":
            {"type": "object", "properties": {"a": {"type": "integer"}}}}}])");
    return request;
  }

  json Post(const std::string& path, const json& request,
            const std::string& output,
            v1::FinishReason finish = v1::FINISH_REASON_STOP) {
    client_->Send("POST", path, request.dump());
    Answer(Accept(), Ids(output), finish);
    const HttpClient::Reply reply = client_->ReadReply();
    EXPECT_EQ(reply.status, 200) << reply.body;
    return json::parse(reply.body);
  }
  std::vector<json> Stream(const std::string& path, json request,
                           const std::string& output) {
    request["stream"] = true;
    client_->Send("POST", path, request.dump());
    Answer(Accept(), Ids(output), v1::FINISH_REASON_STOP);
    EXPECT_EQ(client_->ReadHead().status, 200);
    std::vector<json> events;
    while (const auto data = client_->ReadEvent()) {
      if (*data != "[DONE]") events.push_back(json::parse(*data));
    }
    return events;
  }

  // The message of a chat completion, and the same of its stream.
  json Chat(const json& request, const std::string& output,
            const std::string& finish = "stop") {
    const json body = Post("/v1/chat/completions", request, output);
    const json& choice = body.at("choices").at(0);
    EXPECT_EQ(choice.at("finish_reason"), finish);
    const json message = choice.at("message");
    json streamed = {{"content", ""}, {"reasoning_content", ""}};
    json last;
    for (const json& chunk : Stream("/v1/chat/completions", request, output)) {
      const json& delta = chunk.at("choices").at(0).at("delta");
      for (const char* name : {"content", "reasoning_content"}) {
        streamed[name] = streamed[name].get<std::string>() +
                         (delta.value(name, json()).is_string()
                              ? delta[name].get<std::string>()
                              : "");
      }
      for (const json& call : delta.value("tool_calls", json::array())) {
        json& all = streamed["calls"][call.at("index").get<size_t>()];
        const json& function = call.at("function");
        if (function.contains("name")) all["name"] = function["name"];
        all["arguments"] =
            all.value("arguments", "") + function.value("arguments", "");
      }
      last = chunk.at("choices")[0].at("finish_reason");
    }
    EXPECT_EQ(last, finish);
    const auto text = [](const json& value) {
      return value.is_string() ? value.get<std::string>() : "";
    };
    EXPECT_EQ(streamed["content"], text(message.at("content")));
    EXPECT_EQ(streamed["reasoning_content"],
              text(message.value("reasoning_content", json())));
    const json calls = message.value("tool_calls", json::array());
    EXPECT_EQ(streamed.value("calls", json::array()).size(), calls.size());
    for (size_t i = 0; i < calls.size(); ++i) {
      EXPECT_EQ(streamed["calls"][i], calls[i].at("function"));
    }
    return message;
  }

  // The prompt of the last request.
  std::string Prompt() {
    const std::vector<uint32_t> tokens(sequence_.tokens().begin(),
                                       sequence_.tokens().end());
    return json::parse(
               Connect()
                   ->Post("/detokenize", json({{"tokens", tokens}}).dump())
                   .body)
        .at("prompt");
  }
};

TEST_F(HttpHarmonyTest, ThoughtsAndContent) {
  Start();
  json message = Chat(Question(), absl::StrCat(kThought, kFinal));
  EXPECT_EQ(message.at("content"), "Yes.");
  EXPECT_EQ(message.at("reasoning_content"), "Hm.");
  EXPECT_EQ(Prompt(), "<|start|>user<|message|>Hi<|end|><|start|>assistant");
  // What the model writes without a header, and cut off.
  EXPECT_EQ(Chat(Question(), "Yes. No.").at("content"), "Yes. No.");
  message = Chat(Question(), "<|channel|>analysis<|message|>Hm.");
  EXPECT_EQ(message.at("reasoning_content"), "Hm.");
  EXPECT_EQ(message.value("content", json()), "");
  // All of it, of completions, but for what ends it.
  const std::string text = absl::StrCat(kThought, kPreamble, "x");
  const json body =
      Post("/v1/completions", {{"prompt", {5, 6}}, {"max_tokens", 200}},
           text + "<|return|>");
  EXPECT_EQ(body["choices"][0]["text"], text);
}

TEST_F(HttpHarmonyTest, ClientsMayWantItOtherwise) {
  Start();
  const std::string output = absl::StrCat(kThought, kPreamble, "x");
  json request = WithTool(Question());
  request["separate_reasoning"] = false;
  EXPECT_EQ(Chat(request, output).at("content"), output);
  request = Question();
  request["include_reasoning"] = false;
  const json message = Chat(request, absl::StrCat(kThought, kFinal));
  EXPECT_EQ(message.at("content"), "Yes.");
  EXPECT_FALSE(message.contains("reasoning_content"));
}

TEST_F(HttpHarmonyTest, CountsTokensOfThoughts) {
  ServeMetrics();
  Start();
  const json body =
      Post("/v1/chat/completions", Question(), absl::StrCat(kThought, kFinal));
  const int64_t thought = static_cast<int64_t>(Ids(kThought).size());
  const int64_t tokens =
      body["usage"]["completion_tokens_details"]["reasoning_tokens"];
  EXPECT_GE(tokens, thought);
  EXPECT_LE(tokens, body["usage"]["completion_tokens"].get<int64_t>());
  EXPECT_EQ(Metric("baton_reasoning_tokens_total"), tokens);
  const json plain = Post("/v1/chat/completions", Question(),
                          "<|channel|>final<|message|>Yes.<|return|>");
  EXPECT_EQ(plain["usage"]["completion_tokens_details"]["reasoning_tokens"], 0);
}

TEST_F(HttpHarmonyTest, Calls) {
  Start();
  const std::string output = absl::StrCat(kThought, kPreamble, kAddCall);
  json message = Chat(WithTool(Question()), output, "tool_calls");
  EXPECT_EQ(message.at("reasoning_content"), "Hm.");
  EXPECT_EQ(message.at("content"), "I look.");
  ASSERT_EQ(message.at("tool_calls").size(), 1u);
  EXPECT_EQ(message["tool_calls"][0]["function"],
            json({{"name", "add"}, {"arguments", "{\"a\": 1}"}}));
  // Without tools, and with none that may be called, it is text.
  json request = WithTool(Question());
  request["tool_choice"] = "none";
  for (const json& each : {Question(), request}) {
    message = Chat(each, output);
    EXPECT_THAT(message.at("content"), HasSubstr("to=functions.add"));
    EXPECT_FALSE(message.contains("tool_calls"));
  }
  // One that is cut off.
  const json body =
      Post("/v1/chat/completions", WithTool(Question()),
           " to=functions.add<|channel|>commentary<|message|>{\"a\": ",
           v1::FINISH_REASON_LENGTH);
  EXPECT_EQ(body["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(
      body["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"],
      "{\"a\": ");
}

TEST_F(HttpHarmonyTest, Responses) {
  Start();
  const json request = {{"input", "Hi"},
                        {"reasoning", {{"effort", "low"}}},
                        {"tools", {{{"type", "function"}, {"name", "add"}}}}};
  const auto kinds = [](const json& response) {
    std::string all;
    for (const json& item : response.at("output")) {
      absl::StrAppend(&all, item.at("type").get<std::string>(), " ");
    }
    return all;
  };
  const std::string output = absl::StrCat(
      kThought, kPreamble, "<|start|>assistant", kThought, kAddCall);
  const json whole = Post("/v1/responses", request, output);
  EXPECT_EQ(kinds(whole), "reasoning message reasoning function_call ");
  EXPECT_EQ(whole["output"][0]["content"][0]["text"], "Hm.");
  EXPECT_EQ(whole["output"][1]["content"][0]["text"], "I look.");
  EXPECT_EQ(whole["output"][3]["arguments"], "{\"a\": 1}");
  EXPECT_THAT(Prompt(), HasSubstr("effort low"));
  const json last = Stream("/v1/responses", request, output).back();
  EXPECT_EQ(kinds(last.at("response")), kinds(whole));
}

TEST_F(HttpHarmonyTest, Messages) {
  Start();
  json request = Question();
  request["tools"] = {
      {{"name", "add"}, {"input_schema", {{"type", "object"}}}}};
  const std::string output = absl::StrCat(kThought, kPreamble, kAddCall);
  const json whole = Post("/v1/messages", request, output);
  EXPECT_EQ(whole.at("stop_reason"), "tool_use");
  const json& content = whole.at("content");
  ASSERT_EQ(content.size(), 3u);
  EXPECT_EQ(content[0].at("thinking"), "Hm.");
  EXPECT_EQ(content[1].at("text"), "I look.");
  EXPECT_EQ(content[2].at("input"), json({{"a", 1}}));
  std::string blocks;
  for (const json& event : Stream("/v1/messages", request, output)) {
    if (event.at("type") != "content_block_start") continue;
    absl::StrAppend(&blocks, event["content_block"]["type"].get<std::string>(),
                    " ");
  }
  EXPECT_EQ(blocks, "thinking text tool_use ");
}

TEST_F(HttpHarmonyTest, EarlierThoughtsGoToTheTemplate) {
  Start();
  json request = WithTool(Question());
  request["reasoning_effort"] = "high";
  request["messages"].push_back(
      {{"role", "assistant"},
       {"content", nullptr},
       {"reasoning_content", "I add."},
       {"tool_calls",
        {{{"id", "c"},
          {"type", "function"},
          {"function", {{"name", "add"}, {"arguments", "{\"a\": 1}"}}}}}}});
  request["messages"].push_back(
      {{"role", "tool"}, {"tool_call_id", "c"}, {"content", "2"}});
  Post("/v1/chat/completions", request, absl::StrCat(kThought, kFinal));
  EXPECT_EQ(Prompt(),
            "<|start|>system<|message|>effort high<|end|>"
            "<|start|>user<|message|>Hi<|end|>"
            "<|start|>assistant<|channel|>analysis<|message|>I add.<|end|>"
            "<|start|>assistant to=functions.add<|channel|>commentary"
            "<|message|>{\"a\": 1}<|call|>"
            "<|start|>tool<|message|>2<|end|><|start|>assistant");
}

TEST_F(HttpHarmonyTest, AnAnswerThatGoesOn) {
  Start();
  json request = Question();
  request["messages"].push_back(
      {{"role", "assistant"}, {"content", "Once there"}});
  request["continue_final_message"] = true;
  const json message = Chat(request, " was a cat.<|return|>");
  EXPECT_EQ(message.at("content"), " was a cat.");
  EXPECT_FALSE(message.contains("reasoning_content"));
  // What is begun is of the format, and no call.
  request["guided_regex"] = "[a-z ]+";
  Post("/v1/chat/completions", request, " was a cat<|return|>");
  EXPECT_TRUE(sequence_.has_grammar());
  request.erase("guided_regex");
  request = WithTool(request);
  request["tool_choice"] = "required";
  const HttpClient::Reply reply =
      client_->Post("/v1/chat/completions", request.dump());
  EXPECT_EQ(reply.status, 400);
  EXPECT_EQ(json::parse(reply.body)["error"]["param"], "tool_choice");
}

TEST_F(HttpHarmonyTest, FormatsAreOfTheFinalMessage) {
  Start();
  const auto grammar = [&](json request) {
    client_->Send("POST", "/v1/chat/completions", request.dump());
    Answer(Accept(), Ids(absl::StrCat(kThought, kFinal)),
           v1::FINISH_REASON_STOP);
    EXPECT_EQ(client_->ReadReply().status, 200);
    return sequence_.grammar().SerializeAsString();
  };
  json request = Question();
  request["guided_regex"] = "[0-9]+";
  const std::string separate = grammar(request);
  EXPECT_THAT(separate, HasSubstr("\xff<|channel|>"));
  request["separate_reasoning"] = false;
  EXPECT_THAT(grammar(request), testing::Not(HasSubstr("<|channel|>")));
  request = WithTool(Question());
  request["tool_choice"] = "required";
  EXPECT_THAT(grammar(request), HasSubstr(" to=functions.add"));
  // Workers know the markers, and nothing else with that byte.
  const v1::Vocabulary vocabulary = decode_->NextVocabulary();
  std::vector<std::string> with;
  for (const std::string& text : vocabulary.texts()) {
    if (text.find('\xff') != std::string::npos) with.push_back(text);
  }
  EXPECT_THAT(with, testing::UnorderedElementsAre(
                        "\xff<|start|>", "\xff<|end|>", "\xff<|message|>",
                        "\xff<|channel|>", "\xff<|constrain|>"));
}

}  // namespace
}  // namespace baton::router
