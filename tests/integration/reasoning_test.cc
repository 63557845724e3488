// Models that think before they answer, over the OpenAI API of a real cluster:
// thoughts and answer come apart, and what was asked for is of the answer.
#include <fstream>
#include <memory>
#include <regex>
#include <sstream>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/json.h"
#include "tests/integration/cluster.h"
#include "tests/support/http_client.h"
#include "tests/support/tiny_model.h"

namespace baton::test {
namespace reasoning_test {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::Not;

// The prompt begins the thoughts, unless it is told to have none.
constexpr char kTemplate[] =
    R"({%- for tool in tools or [] %}<tool_call>{"name": "{{ )"
    R"(tool.function.name }}", "arguments": {}}</tool_call>{% endfor -%}
{%- for m in messages %}[{{ m.role }}] {{ m.content }}
{% endfor %}[assistant] <think>
{% if enable_thinking is defined and not enable_thinking %}
</think>

{% endif %})";

// Of the tiny model, whose words no text encodes to.
constexpr int kThinkEndsToken = 258;

// What a client keeps of an answer, however it came.
struct ThoughtHeard {
  std::string reasoning;
  std::string content;
  std::string called;  // arguments of the calls
  std::string finish_reason;
  int64_t tokens = 0;
  int64_t reasoning_tokens = 0;
  friend bool operator==(const ThoughtHeard&, const ThoughtHeard&) = default;
};

void PrintTo(const ThoughtHeard& heard, std::ostream* out) {
  *out << json(heard.reasoning) << " then " << json(heard.content) << " then "
       << heard.called << ", " << heard.finish_reason << ", " << heard.tokens
       << " tokens, " << heard.reasoning_tokens << " of them thoughts";
}

void AddMessage(const json& message, ThoughtHeard* heard) {
  const auto text = [&](const char* name) {
    const json value = message.value(name, json());
    return value.is_null() ? std::string() : value.get<std::string>();
  };
  heard->reasoning += text("reasoning_content");
  heard->content += text("content");
  for (const json& call : message.value("tool_calls", json::array())) {
    heard->called += call.at("function").at("arguments");
  }
}

void AddUsage(const json& usage, ThoughtHeard* heard) {
  heard->tokens = usage.at("completion_tokens");
  heard->reasoning_tokens =
      usage.at("completion_tokens_details").at("reasoning_tokens");
}

class ReasoningTest : public testing::Test {
 protected:
  void SetUp() override {
    const std::string dir = scratch_.path() + "/model";
    ASSERT_TRUE(WriteTinyModel(dir, {.max_position = 2048}).ok());
    std::ofstream(dir + "/chat_template.jinja") << kTemplate;
    NameToken(dir, "</think>");
    cluster_ = std::make_unique<Cluster>(dir);
    const absl::Status started = cluster_->Start({});
    ASSERT_TRUE(started.ok()) << started;
  }

  // Gives one of the model's words another text.
  static void NameToken(const std::string& dir, const std::string& text) {
    std::stringstream file;
    file << std::ifstream(dir + "/tokenizer.json").rdbuf();
    const std::string old = absl::StrCat("\u0120word", kThinkEndsToken);
    const std::string changed = absl::StrReplaceAll(file.str(), {{old, text}});
    ASSERT_NE(changed, file.str());
    std::ofstream(dir + "/tokenizer.json") << changed;
  }

  // Each token ends the thoughts with some probability.
  static json Request(uint64_t seed) {
    return {{"messages", {{{"role", "user"}, {"content", "Hi"}}}},
            {"max_tokens", 400},
            {"temperature", 6},
            {"seed", seed},
            {"logit_bias", {{absl::StrCat(kThinkEndsToken), 20}}}};
  }

  // The same, whole and streamed; but for how tokens came together.
  ThoughtHeard Ask(json request) {
    HttpClient client(cluster_->Address("router", "http"));
    const HttpClient::Reply reply =
        client.Post("/v1/chat/completions", request.dump());
    EXPECT_EQ(reply.status, 200) << reply.body;
    if (reply.status != 200) return {};
    const json body = json::parse(reply.body);
    ThoughtHeard whole;
    AddMessage(body.at("choices").at(0).at("message"), &whole);
    whole.finish_reason = body["choices"][0].at("finish_reason");
    AddUsage(body.at("usage"), &whole);

    request["stream"] = true;
    request["stream_options"] = {{"include_usage", true}};
    HttpClient other(cluster_->Address("router", "http"));
    other.Send("POST", "/v1/chat/completions", request.dump());
    EXPECT_EQ(other.ReadHead().status, 200);
    ThoughtHeard streamed;
    while (const auto event = other.ReadEvent()) {
      if (*event == "[DONE]") continue;
      const json chunk = json::parse(*event);
      EXPECT_FALSE(chunk.contains("error")) << chunk;
      for (const json& choice : chunk.at("choices")) {
        AddMessage(choice.at("delta"), &streamed);
        if (!choice.at("finish_reason").is_null()) {
          streamed.finish_reason = choice["finish_reason"];
        }
      }
      if (chunk.at("choices").empty()) AddUsage(chunk.at("usage"), &streamed);
    }
    streamed.reasoning_tokens = whole.reasoning_tokens;
    EXPECT_EQ(streamed, whole);
    EXPECT_THAT(whole.reasoning, Not(HasSubstr("</think>")));
    EXPECT_LE(whole.reasoning_tokens, whole.tokens);
    return whole;
  }

  ScratchDir scratch_;
  std::unique_ptr<Cluster> cluster_;
};

TEST_F(ReasoningTest, TheFormatIsOfTheAnswer) {
  int thought = 0;
  for (uint64_t seed = 0; seed < 8; ++seed) {
    json request = Request(seed);
    request["guided_regex"] = "[0-9]{1,4} cats\\.";
    const ThoughtHeard heard = Ask(request);
    EXPECT_TRUE(
        std::regex_match(heard.content, std::regex("[0-9]{1,4} cats\\.")))
        << heard.content;
    EXPECT_EQ(heard.finish_reason, "stop");
    EXPECT_GT(heard.reasoning_tokens, 0);
    thought += !heard.reasoning.empty();
  }
  EXPECT_GT(thought, 4);
}

TEST_F(ReasoningTest, ACallThatHasToBeMadeComesBehindIt) {
  for (uint64_t seed = 0; seed < 4; ++seed) {
    json request = Request(seed);
    request["tools"] = json::parse(R"([{"type": "function", "function": {
        "name": "add", "parameters": {
          "type": "object", "properties": {"x": {"enum": [1, 2]}},
          "required": ["x"], "additionalProperties": false}}}])");
    request["tool_choice"] = "required";
    request["parallel_tool_calls"] = false;
    const ThoughtHeard heard = Ask(request);
    EXPECT_EQ(heard.content, "");
    const json arguments = json::parse(heard.called, nullptr, false);
    ASSERT_TRUE(arguments.is_object()) << heard.called;
    EXPECT_THAT(arguments.at("x").get<int>(), testing::AnyOf(1, 2));
    EXPECT_EQ(heard.finish_reason, "tool_calls");
  }
}

TEST_F(ReasoningTest, WithoutThoughtsAllIsTheAnswer) {
  json request = Request(5);
  request["chat_template_kwargs"] = {{"enable_thinking", false}};
  request["guided_regex"] = "[0-9]{1,4}";
  HttpClient client(cluster_->Address("router", "http"));
  const HttpClient::Reply reply =
      client.Post("/v1/chat/completions", request.dump());
  ASSERT_EQ(reply.status, 200) << reply.body;
  const json message = json::parse(reply.body)["choices"][0]["message"];
  EXPECT_FALSE(message.contains("reasoning_content"));
  EXPECT_TRUE(std::regex_match(message["content"].get<std::string>(),
                               std::regex("[0-9]{1,4}")));
}

// A thinker that is cut off has said nothing.
TEST_F(ReasoningTest, MaxTokensMayComeFirst) {
  json request = Request(1);
  request["logit_bias"] = {{absl::StrCat(kThinkEndsToken), -100}};
  request["max_tokens"] = 12;
  const ThoughtHeard heard = Ask(request);
  EXPECT_EQ(heard.content, "");
  EXPECT_EQ(heard.finish_reason, "length");
  EXPECT_EQ(heard.tokens, 12);
  EXPECT_EQ(heard.reasoning_tokens, 12);
}

}  // namespace
}  // namespace reasoning_test
}  // namespace baton::test
