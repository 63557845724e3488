// Models that write messages of Harmony, over the OpenAI API of a real cluster:
// what a client asked for is of the last message, and its markers are tokens.
#include <cstdint>
#include <fstream>
#include <memory>
#include <regex>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "common/json.h"
#include "tests/integration/cluster.h"
#include "tests/support/http_client.h"
#include "tests/support/tiny_model.h"

namespace baton::test {
namespace harmony_test {
namespace {

using nlohmann::json;

constexpr char kTemplate[] =
    R"({%- for m in messages %}<|start|>{{ m.role }}<|message|>)"
    R"({{ m.content }}<|end|>{% endfor %}<|start|>assistant)"
    R"({%- if false %}<|channel|>{% endif %})";

// Of the tiny model, whose words no text encodes to.
constexpr int kFirstMarkerToken = 258;
constexpr const char* kMarkers[] = {
    "<|end|>",       "<|start|>",  "<|channel|>", "<|message|>",
    "<|constrain|>", "<|return|>", "<|call|>"};

class HarmonyTest : public testing::Test {
 protected:
  void SetUp() override {
    const std::string dir = scratch_.path() + "/model";
    ASSERT_TRUE(WriteTinyModel(dir, {.max_position = 2048}).ok());
    std::ofstream(dir + "/chat_template.jinja") << kTemplate;
    NameMarkers(dir + "/tokenizer.json");
    cluster_ = std::make_unique<Cluster>(dir);
    const absl::Status started = cluster_->Start({});
    ASSERT_TRUE(started.ok()) << started;
  }

  // Makes some of the model's words the markers.
  static void NameMarkers(const std::string& path) {
    json tokenizer = json::parse(std::ifstream(path));
    json& vocab = tokenizer["model"]["vocab"];
    int token = kFirstMarkerToken;
    for (const char* marker : kMarkers) {
      const std::string old = absl::StrCat("\u0120word", token);
      ASSERT_EQ(vocab.value(old, -1), token);
      vocab.erase(old);
      vocab[marker] = token;
      tokenizer["added_tokens"].push_back({{"id", token},
                                           {"content", marker},
                                           {"single_word", false},
                                           {"lstrip", false},
                                           {"rstrip", false},
                                           {"normalized", false},
                                           {"special", true}});
      ++token;
    }
    std::ofstream(path) << tokenizer.dump();
  }

  // Each token ends the thoughts with some probability.
  static json Request(uint64_t seed) {
    return {{"messages", {{{"role", "user"}, {"content", "Hi"}}}},
            {"max_tokens", 1000},
            {"temperature", 6},
            {"seed", seed},
            {"logit_bias", {{absl::StrCat(kFirstMarkerToken), 20}}}};
  }

  json Ask(const json& request) {
    HttpClient client(cluster_->Address("router", "http"));
    const HttpClient::Reply reply =
        client.Post("/v1/chat/completions", request.dump());
    EXPECT_EQ(reply.status, 200) << reply.body;
    return json::parse(reply.body);
  }

  ScratchDir scratch_;
  std::unique_ptr<Cluster> cluster_;
};

TEST_F(HarmonyTest, TheFormatIsOfTheFinalMessage) {
  int thought = 0;
  for (uint64_t seed = 0; seed < 8; ++seed) {
    json request = Request(seed);
    request["guided_regex"] = "[0-9]{1,4} cats\\.";
    const json body = Ask(request);
    const json& choice = body.at("choices").at(0);
    EXPECT_EQ(choice.at("finish_reason"), "stop");
    EXPECT_TRUE(
        std::regex_match(choice["message"].at("content").get<std::string>(),
                         std::regex("[0-9]{1,4} cats\\.")))
        << body;
    const int64_t tokens =
        body["usage"]["completion_tokens_details"]["reasoning_tokens"];
    EXPECT_TRUE(tokens > 0 || !choice["message"].contains("reasoning_content"));
    thought += tokens > 0;
  }
  EXPECT_GT(thought, 0);
}

// A string in which markers would like to come.
TEST_F(HarmonyTest, MarkersAreNoTextOfJson) {
  for (uint64_t seed = 0; seed < 4; ++seed) {
    json request = Request(seed);
    for (size_t i = 0; i < 5; ++i) {
      request["logit_bias"][absl::StrCat(kFirstMarkerToken + i)] = 20;
    }
    request["response_format"] = json::parse(
        R"({"type": "json_schema", "json_schema": {"schema": {
            "type": "object", "properties": {"x": {"type": "string",
            "minLength": 20, "maxLength": 30}}, "required": ["x"],
            "additionalProperties": false}}})");
    const json message = Ask(request).at("choices").at(0).at("message");
    const json content =
        json::parse(message.at("content").get<std::string>(), nullptr, false);
    ASSERT_TRUE(content.is_object()) << message;
    EXPECT_EQ(content.at("x").get<std::string>().find("<|"), std::string::npos);
  }
}

TEST_F(HarmonyTest, ACallThatHasToBeMadeIsAMessage) {
  for (uint64_t seed = 0; seed < 4; ++seed) {
    json request = Request(seed);
    request["tools"] = json::parse(R"([{"type": "function", "function": {
        "name": "add", "parameters": {
          "type": "object", "properties": {"x": {"enum": [1, 2]}},
          "required": ["x"], "additionalProperties": false}}}])");
    request["tool_choice"] = "required";
    const json choice = Ask(request).at("choices").at(0);
    EXPECT_EQ(choice.at("finish_reason"), "tool_calls") << choice;
    const json& call = choice.at("message").at("tool_calls").at(0);
    EXPECT_EQ(call.at("function").at("name"), "add");
    const json arguments = json::parse(
        call["function"].at("arguments").get<std::string>(), nullptr, false);
    ASSERT_TRUE(arguments.is_object()) << choice;
    EXPECT_THAT(arguments.at("x").get<int>(), testing::AnyOf(1, 2));
  }
}

}  // namespace
}  // namespace harmony_test
}  // namespace baton::test
