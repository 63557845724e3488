// Tool calls over the HTTP APIs of a real cluster: a model that has to call
// something calls it, with arguments that the tool takes, streamed or not.
#include <algorithm>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "common/json.h"
#include "tests/integration/cluster.h"
#include "tests/support/http_client.h"
#include "tests/support/tiny_model.h"

namespace baton::test {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::StartsWith;

// As Hermes and Qwen have it, in short.
constexpr char kTemplate[] =
    R"({%- for tool in tools or [] %}{{ tool | tojson }}{% endfor -%}
{%- for m in messages %}[{{ m.role }}] {{ m.content }}
{%- for call in m.tool_calls or [] %}<tool_call>
{"name": "{{ call.function.name }}", "arguments": )"
    R"({{ call.function.arguments | tojson }}}
</tool_call>{% endfor %}
{% endfor %}[assistant] )";

constexpr char kTools[] = R"([
    {"type": "function", "function": {"name": "weather", "parameters": {
      "type": "object", "properties": {
        "city": {"type": "string", "maxLength": 9},
        "unit": {"enum": ["C", "F"]}},
      "required": ["city", "unit"], "additionalProperties": false}}},
    {"type": "function", "function": {"name": "add", "parameters": {
      "type": "object", "properties": {
        "terms": {"type": "array", "items": {"type": "integer", "minimum": 0,
                  "maximum": 999}, "minItems": 2, "maxItems": 3}},
      "required": ["terms"], "additionalProperties": false}}}])";

struct Call {
  std::string id;
  std::string name;
  std::string arguments;
  friend bool operator==(const Call&, const Call&) = default;
};

// What a client keeps of an answer, however it came.
struct CallsHeard {
  std::string content;
  std::vector<Call> calls;
  std::string finish_reason;
};

CallsHeard CallsOf(const json& body) {
  const json& choice = body.at("choices").at(0);
  const json& message = choice.at("message");
  CallsHeard heard;
  heard.finish_reason = choice.at("finish_reason");
  if (message.contains("tool_calls")) {
    for (const json& call : message.at("tool_calls")) {
      EXPECT_EQ(call.at("type"), "function");
      heard.calls.push_back({call.at("id"), call.at("function").at("name"),
                             call.at("function").at("arguments")});
    }
  }
  if (!message.at("content").is_null()) heard.content = message["content"];
  EXPECT_EQ(message.at("content").is_null(),
            heard.content.empty() && !heard.calls.empty());
  return heard;
}

CallsHeard StreamedCalls(HttpClient* client) {
  CallsHeard heard;
  while (const auto event = client->ReadEvent()) {
    if (*event == "[DONE]") continue;
    const json chunk = json::parse(*event);
    EXPECT_FALSE(chunk.contains("error")) << chunk;
    for (const json& choice : chunk.at("choices")) {
      const json& delta = choice.at("delta");
      if (delta.contains("content")) heard.content += delta["content"];
      if (delta.contains("tool_calls")) {
        const json& call = delta["tool_calls"].at(0);
        const size_t index = call.at("index");
        if (call.contains("id")) {
          EXPECT_EQ(index, heard.calls.size());
          heard.calls.push_back({call["id"], call["function"].at("name"), ""});
        }
        EXPECT_LT(index, heard.calls.size());
        heard.calls.back().arguments += call["function"].at("arguments");
      }
      if (!choice.at("finish_reason").is_null()) {
        heard.finish_reason = choice["finish_reason"];
      }
    }
  }
  return heard;
}

class ToolCallsTest : public testing::Test {
 protected:
  void SetUp() override {
    const std::string dir = scratch_.path() + "/model";
    // A token a byte, and tools have many.
    ASSERT_TRUE(WriteTinyModel(dir, {.max_position = 2048}).ok());
    std::ofstream(dir + "/chat_template.jinja") << Template();
    cluster_ = std::make_unique<Cluster>(dir);
    const absl::Status started = cluster_->Start({});
    ASSERT_TRUE(started.ok()) << started;
  }

  virtual std::string Template() const { return kTemplate; }

  static json Request(uint64_t seed) {
    return {{"messages", {{{"role", "user"}, {"content", "Hi"}}}},
            {"tools", json::parse(kTools)},
            {"max_tokens", 500},
            {"temperature", 6},
            {"seed", seed}};
  }

  // That names the tool.
  static json RequestForAdd(uint64_t seed) {
    json request = Request(seed);
    request["tool_choice"] = {{"type", "function"},
                              {"function", {{"name", "add"}}}};
    return request;
  }

  HttpClient::Reply Post(const json& request) {
    HttpClient client(cluster_->Address("router", "http"));
    return client.Post("/v1/chat/completions", request.dump());
  }

  // The same, whole and streamed.
  CallsHeard Ask(json request) {
    const HttpClient::Reply response = Post(request);
    EXPECT_EQ(response.status, 200) << response.body;
    if (response.status != 200) return {};
    const CallsHeard whole = CallsOf(json::parse(response.body));
    request["stream"] = true;
    HttpClient client(cluster_->Address("router", "http"));
    client.Send("POST", "/v1/chat/completions", request.dump());
    EXPECT_EQ(client.ReadHead().status, 200);
    const CallsHeard streamed = StreamedCalls(&client);
    EXPECT_EQ(streamed.content, whole.content);
    EXPECT_EQ(streamed.finish_reason, whole.finish_reason);
    EXPECT_EQ(streamed.calls.size(), whole.calls.size());
    for (size_t i = 0; i < std::min(whole.calls.size(), streamed.calls.size());
         ++i) {
      EXPECT_EQ(streamed.calls[i].name, whole.calls[i].name);
      EXPECT_EQ(streamed.calls[i].arguments, whole.calls[i].arguments);
    }
    return whole;
  }

  static void CheckArguments(const Call& call) {
    SCOPED_TRACE(absl::StrCat(call.name, " ", call.arguments));
    EXPECT_THAT(call.id, StartsWith("call_"));
    const json arguments = json::parse(call.arguments, nullptr, false);
    ASSERT_TRUE(arguments.is_object());
    if (call.name == "weather") {
      EXPECT_EQ(arguments.size(), 2u);
      EXPECT_TRUE(arguments.at("city").is_string());
      EXPECT_THAT(arguments.at("unit"), testing::AnyOf("C", "F"));
    } else {
      EXPECT_EQ(call.name, "add");
      EXPECT_GE(arguments.at("terms").size(), 2u);
      EXPECT_LE(arguments.at("terms").size(), 3u);
    }
  }

  ScratchDir scratch_;
  std::unique_ptr<Cluster> cluster_;
};

TEST_F(ToolCallsTest, AModelThatHasToCallsSomething) {
  std::map<std::string, int> called;
  size_t most = 0;
  for (uint64_t seed = 0; seed < 12; ++seed) {
    json request = Request(seed);
    request["tool_choice"] = "required";
    if (seed % 2 == 0) request["parallel_tool_calls"] = false;
    const CallsHeard heard = Ask(request);
    ASSERT_FALSE(heard.calls.empty()) << seed << ": " << heard.content;
    if (seed % 2 == 0) {
      EXPECT_EQ(heard.calls.size(), 1u);
    }
    most = std::max(most, heard.calls.size());
    // max_tokens may cut the last of many off.
    if (heard.finish_reason == "length") continue;
    EXPECT_EQ(heard.finish_reason, "tool_calls");
    EXPECT_EQ(heard.content, "");
    for (const Call& call : heard.calls) {
      CheckArguments(call);
      ++called[call.name];
    }
  }
  EXPECT_EQ(called.size(), 2u) << "only one of two tools was called";
}

TEST_F(ToolCallsTest, TheOneThatIsNamedIsCalledOnce) {
  for (uint64_t seed = 0; seed < 4; ++seed) {
    const CallsHeard heard = Ask(RequestForAdd(seed));
    ASSERT_EQ(heard.calls.size(), 1u);
    EXPECT_EQ(heard.calls[0].name, "add");
    CheckArguments(heard.calls[0]);
  }
}

// As DeepSeek V3.1 has it, whose template wants arguments as texts.
class HeadedToolCallsTest : public ToolCallsTest {
  std::string Template() const override {
    return R"({%- for tool in tools or [] %}{{ tool | tojson }}{% endfor -%}
{%- for m in messages %}[{{ m.role }}] {{ m.content }}
{%- if m.tool_calls %}<｜tool▁calls▁begin｜>{% for call in m.tool_calls -%}
{{ '<｜tool▁call▁begin｜>' + call.function.name + '<｜tool▁sep｜>' +
   call.function.arguments + '<｜tool▁call▁end｜>' }}
{%- endfor %}<｜tool▁calls▁end｜>{% endif %}
{% endfor %}[assistant] )";
  }
};

TEST_F(HeadedToolCallsTest, CallsAreMadeAndComeBack) {
  for (uint64_t seed = 0; seed < 4; ++seed) {
    json request = RequestForAdd(seed);
    const CallsHeard heard = Ask(request);
    ASSERT_EQ(heard.calls.size(), 1u);
    EXPECT_EQ(heard.finish_reason, "tool_calls");
    EXPECT_EQ(heard.content, "");
    CheckArguments(heard.calls[0]);
    request["messages"].push_back(
        {{"role", "assistant"},
         {"content", nullptr},
         {"tool_calls",
          {{{"id", heard.calls[0].id},
            {"type", "function"},
            {"function",
             {{"name", "add"}, {"arguments", heard.calls[0].arguments}}}}}}});
    request["messages"].push_back({{"role", "tool"},
                                   {"tool_call_id", heard.calls[0].id},
                                   {"content", "3"}});
    EXPECT_EQ(Ask(request).calls.size(), 1u);
  }
}

// What the model writes as it likes is looked through, and otherwise content.
TEST_F(ToolCallsTest, TextIsContent) {
  for (const char* choice : {"auto", "none"}) {
    json request = Request(3);
    request["tool_choice"] = choice;
    const CallsHeard heard = Ask(request);
    EXPECT_TRUE(heard.calls.empty());
    EXPECT_NE(heard.content, "");
    // The format is found whether it was asked for or written freely.
    request["guided_regex"] =
        "Wait\\.\\n<tool_call>\\n\\{\"name\": \"add\", \"arguments\": "
        "\\{\"terms\": \\[[1-3], 4\\]\\}\\}\\n</tool_call>";
    const CallsHeard called = Ask(request);
    if (choice == std::string("none")) {
      EXPECT_TRUE(called.calls.empty());
      EXPECT_THAT(called.content, HasSubstr("<tool_call>"));
      EXPECT_EQ(called.finish_reason, "stop");
      continue;
    }
    ASSERT_EQ(called.calls.size(), 1u);
    CheckArguments(called.calls[0]);
    EXPECT_EQ(called.content, "Wait.\n");
    EXPECT_EQ(called.finish_reason, "tool_calls");
  }
}

// A client sends back what was called, and what came of it.
TEST_F(ToolCallsTest, CallsOfThePastAreRendered) {
  const auto tokens = [&](const json& arguments) -> int {
    json request = Request(1);
    request["max_tokens"] = 1;
    request["messages"].push_back(
        {{"role", "assistant"},
         {"content", nullptr},
         {"tool_calls",
          {{{"id", "call_1"},
            {"type", "function"},
            {"function", {{"name", "add"}, {"arguments", arguments}}}}}}});
    request["messages"].push_back(
        {{"role", "tool"}, {"tool_call_id", "call_1"}, {"content", "3"}});
    const HttpClient::Reply response = Post(request);
    EXPECT_EQ(response.status, 200) << response.body;
    return json::parse(response.body).at("usage").at("prompt_tokens");
  };
  // OpenAI's API has them as a string, templates as an object.
  EXPECT_EQ(tokens("{\"terms\": [1, 2]}"),
            tokens(json::parse("{\"terms\": [1, 2]}")));
}

// What Anthropic's clients say in their own words is the same chat.
TEST_F(ToolCallsTest, MessagesCallTheSame) {
  // The template shows tools in the order of their fields.
  using nlohmann::ordered_json;
  ordered_json chat = Request(5);
  ordered_json messages = chat;
  chat["tools"] = ordered_json::parse(kTools);
  messages["tools"] = ordered_json::array();
  for (const ordered_json& tool : chat["tools"]) {
    const ordered_json& function = tool.at("function");
    messages["tools"].push_back({{"name", function.at("name")},
                                 {"input_schema", function.at("parameters")}});
  }
  chat["tool_choice"] = "required";
  messages["tool_choice"] = {{"type", "any"}};
  chat["parallel_tool_calls"] = false;
  messages["tool_choice"]["disable_parallel_tool_use"] = true;
  HttpClient client(cluster_->Address("router", "http"));
  const auto ask = [&](const char* path, const ordered_json& request) {
    const HttpClient::Reply reply = client.Post(path, request.dump());
    EXPECT_EQ(reply.status, 200) << reply.body;
    return json::parse(reply.body);
  };
  const CallsHeard heard = CallsOf(ask("/v1/chat/completions", chat));
  ASSERT_EQ(heard.calls.size(), 1u);
  const json message = ask("/v1/messages", messages);
  EXPECT_EQ(message.at("stop_reason"), "tool_use");
  const json& block = message.at("content").back();
  ASSERT_EQ(block.at("type"), "tool_use") << message;
  EXPECT_EQ(block.at("name"), heard.calls[0].name);
  EXPECT_EQ(block.at("input"), json::parse(heard.calls[0].arguments));

  // They go on alike.
  const Call& call = heard.calls[0];
  chat["messages"].push_back(
      {{"role", "assistant"},
       {"content", nullptr},
       {"tool_calls",
        {{{"id", call.id},
          {"type", "function"},
          {"function",
           {{"name", call.name}, {"arguments", call.arguments}}}}}}});
  chat["messages"].push_back(
      {{"role", "tool"}, {"tool_call_id", call.id}, {"content", "3"}});
  messages["messages"].push_back(
      {{"role", "assistant"}, {"content", message.at("content")}});
  messages["messages"].push_back({{"role", "user"},
                                  {"content",
                                   {{{"type", "tool_result"},
                                     {"tool_use_id", block.at("id")},
                                     {"content", "3"}}}}});
  for (ordered_json* request : {&chat, &messages}) {
    request->erase("tool_choice");
    (*request)["max_tokens"] = 20;
  }
  const json next = ask("/v1/messages", messages);
  const json body = ask("/v1/chat/completions", chat);
  EXPECT_EQ(next.at("content").at(0).at("text"),
            body.at("choices").at(0).at("message").at("content"));
  const json& usage = next.at("usage");
  const int prompt_tokens = body.at("usage").at("prompt_tokens");
  EXPECT_EQ(usage.at("input_tokens").get<int>() +
                usage.at("cache_read_input_tokens").get<int>(),
            prompt_tokens);
  EXPECT_EQ(ask("/v1/messages/count_tokens", messages),
            json({{"input_tokens", prompt_tokens}}));
}

TEST_F(ToolCallsTest, ChoicesThatAreNoneAreNamed) {
  const auto why = [&](const json& change) {
    json request = Request(1);
    request.update(change);
    const HttpClient::Reply response = Post(request);
    EXPECT_EQ(response.status, 400) << response.body;
    const json error = json::parse(response.body).at("error");
    return absl::StrCat(error.at("param").get<std::string>(), ": ",
                        error.at("message").get<std::string>());
  };
  EXPECT_THAT(why({{"tool_choice", "always"}}),
              StartsWith("tool_choice: tool_choice must be none, auto"));
  EXPECT_THAT(why({{"tool_choice", "required"}, {"tools", json::array()}}),
              HasSubstr("tools has nothing to call"));
  EXPECT_THAT(why({{"tool_choice",
                    {{"type", "function"}, {"function", {{"name", "x"}}}}}}),
              HasSubstr("tools has nothing to call"));
  EXPECT_THAT(why({{"tool_choice", "required"}, {"guided_regex", "a"}}),
              HasSubstr("the answer is to be something else"));
  json tools = json::parse(kTools);
  tools[0]["function"]["parameters"] = {{"type", "object"},
                                        {"not", json::object()}};
  EXPECT_THAT(why({{"tool_choice", "required"}, {"tools", tools}}),
              HasSubstr("has the tool \"weather\", whose parameters' schema "
                        "has \"not\" at #"));
}

}  // namespace
}  // namespace baton::test
