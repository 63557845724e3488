// Calls of tools that a model writes as tags, over the OpenAI API of a real
// router among fake workers.
#include <fstream>
#include <sstream>
#include <string>

#include <gtest/gtest.h>

#include "common/json.h"
#include "tests/router/http_api_fixture.h"

namespace baton::router {
namespace {

using nlohmann::json;
using test::HttpClient;

std::string FamilyTemplate(const std::string& family) {
  std::ifstream in(BATON_SOURCE_DIR "/tests/data/chat_templates/families/" +
                   family + ".jinja");
  EXPECT_TRUE(in) << family;
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

class HttpToolCallsTest : public HttpApiTest {
 protected:
  static json Request() {
    json request = {{"messages", {{{"role", "user"}, {"content", "Hi"}}}},
                    {"max_tokens", 300}};
    request["tools"] = json::parse(R"([{"type": "function", "function": {
        "name": "post", "description": "Sends", "parameters": {
          "type": "object", "properties": {
            "zip": {"type": "string"}, "days": {"type": "integer"},
            "tags": {"type": "array"}}}}}])");
    return request;
  }

  // What the model is made to write becomes this call, streamed or not, whether
  // it had to call something or not.
  void ExpectCall(const std::string& output, const std::string& content,
                  const std::string& arguments) {
    for (const bool stream : {false, true}) {
      json request = Request();
      request["stream"] = stream;
      const bool required = stream == content.empty();
      if (required) request["tool_choice"] = "required";
      client_->Send("POST", "/v1/chat/completions", request.dump());
      Answer(Accept(), Ids(output), v1::FINISH_REASON_STOP);
      EXPECT_EQ(sequence_.has_grammar(), required);
      std::string said;
      std::string name;
      std::string written;
      std::string finish;
      const auto hear = [&](const json& choice, const json& message) {
        if (message.contains("content") && message["content"].is_string()) {
          said += message["content"];
        }
        for (const json& call : message.value("tool_calls", json::array())) {
          const json& function = call.at("function");
          name += function.value("name", "");
          written += function.value("arguments", "");
        }
        if (choice["finish_reason"].is_string()) {
          finish = choice["finish_reason"];
        }
      };
      if (stream) {
        EXPECT_EQ(client_->ReadHead().status, 200);
        for (const json& chunk : ReadChunks()) {
          const json& choice = chunk.at("choices").at(0);
          hear(choice, choice.at("delta"));
        }
      } else {
        const HttpClient::Reply reply = client_->ReadReply();
        EXPECT_EQ(reply.status, 200) << reply.body;
        const json choice = json::parse(reply.body).at("choices").at(0);
        hear(choice, choice.at("message"));
      }
      EXPECT_EQ(said, content) << stream;
      EXPECT_EQ(name, "post") << stream;
      EXPECT_EQ(written, arguments) << stream;
      EXPECT_EQ(finish, "tool_calls") << stream;
    }
  }
};

TEST_F(HttpToolCallsTest, GlmsTags) {
  UseTemplate(FamilyTemplate("glm-like"));
  Start();
  ExpectCall(
      "I send it.\n<tool_call>post\n<arg_key>zip</arg_key>\n"
      "<arg_value>01234</arg_value>\n<arg_key>days</arg_key>\n"
      "<arg_value>3</arg_value>\n<arg_key>tags</arg_key>\n"
      "<arg_value>[\"a\"]</arg_value>\n</tool_call>",
      "I send it.\n", R"({"zip": "01234", "days": 3, "tags": ["a"]})");
}

TEST_F(HttpToolCallsTest, QwenCodersTags) {
  UseTemplate(FamilyTemplate("coder-like"));
  Start();
  ExpectCall(
      "<tool_call>\n<function=post>\n<parameter=zip>\n01234\n</parameter>\n"
      "<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>",
      "", R"({"zip": "01234", "days": 3})");
}

}  // namespace
}  // namespace baton::router
