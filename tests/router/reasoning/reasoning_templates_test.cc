// Models' own chat templates: which ones think, and where that begins.
#include <fstream>
#include <memory>
#include <string>

#include <gtest/gtest.h>

#include "common/json.h"
#include "router/reasoning/reasoning_start.h"
#include "router/text/chat_template.h"

namespace baton::router {
namespace {

using Json = nlohmann::ordered_json;

std::string TemplateOf(const std::string& model) {
  std::ifstream file(std::string(BATON_SOURCE_DIR) +
                     "/tests/data/chat_templates/" + model + ".json");
  return Json::parse(file).at("template");
}

// What Qwen 3's template makes of `messages`.
std::string Qwen3Prompt(const char* messages, const Json& arguments) {
  const auto chat_template = ChatTemplate::Parse(TemplateOf("qwen3"), {});
  EXPECT_TRUE(chat_template.ok()) << chat_template.status();
  ChatInput input;
  input.messages = Json::parse(messages);
  input.arguments = arguments;
  const auto prompt = (*chat_template)->Render(input);
  EXPECT_TRUE(prompt.ok()) << prompt.status();
  return *prompt;
}

TEST(ReasoningTemplatesTest, OfTheseOnlyQwen3Thinks) {
  EXPECT_TRUE(WritesReasoning(TemplateOf("qwen3")));
  for (const char* model :
       {"gemma-2", "llama-3.1", "mistral-nemo", "phi-3.5", "qwen2.5"}) {
    EXPECT_FALSE(WritesReasoning(TemplateOf(model))) << model;
  }
}

TEST(ReasoningTemplatesTest, Qwen3ThinksUnlessItIsToldNotTo) {
  const auto start = [](const Json& arguments) {
    return FindReasoningStart(Qwen3Prompt(R"([
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "<think>\nHm.\n</think>\n\nHello."},
        {"role": "user", "content": "Bye"}])",
                                          arguments));
  };
  EXPECT_EQ(start(nullptr), ReasoningStart::kPossible);
  EXPECT_EQ(start({{"enable_thinking", true}}), ReasoningStart::kPossible);
  EXPECT_EQ(start({{"enable_thinking", false}}), ReasoningStart::kNone);
}

// What `reasoning_content` of earlier messages becomes is the template's
// affair; here, it goes into the prompt only behind the last user.
TEST(ReasoningTemplatesTest, Qwen3ReadsEarlierThoughts) {
  const std::string prompt = Qwen3Prompt(R"([
      {"role": "user", "content": "Add"},
      {"role": "assistant", "content": "", "reasoning_content": "With the tool.",
       "tool_calls": [{"type": "function", "function": {"name": "add",
                       "arguments": {"x": 1}}}]},
      {"role": "tool", "content": "2"}])",
                                         nullptr);
  EXPECT_NE(prompt.find("<think>\nWith the tool.\n</think>"), std::string::npos)
      << prompt;
}

}  // namespace
}  // namespace baton::router
