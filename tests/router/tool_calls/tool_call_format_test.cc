#include "router/tool_calls/tool_call_format.h"

#include <fstream>
#include <optional>
#include <sstream>
#include <string>

#include <gtest/gtest.h>

#include "common/json.h"

namespace baton::router {
namespace {

std::string TemplateText(const std::string& file) {
  const std::string path =
      BATON_SOURCE_DIR "/tests/data/chat_templates/" + file;
  std::ifstream in(path, std::ios::binary);
  EXPECT_TRUE(in) << path;
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

std::optional<ToolCallFormat> FormatOfModel(const std::string& model) {
  const auto file = nlohmann::json::parse(TemplateText(model + ".json"));
  return FindToolCallFormat(file.at("template").get<std::string>());
}

std::optional<ToolCallFormat> FormatOfFamily(const std::string& family) {
  return FindToolCallFormat(TemplateText("families/" + family + ".jinja"));
}

TEST(ToolCallFormatTest, ModelsOwnTemplatesSayIt) {
  EXPECT_EQ(FormatOfModel("qwen2.5"), ToolCallFormat::kHermes);
  EXPECT_EQ(FormatOfModel("qwen3"), ToolCallFormat::kHermes);
  EXPECT_EQ(FormatOfModel("llama-3.1"), ToolCallFormat::kLlamaJson);
  EXPECT_EQ(FormatOfModel("mistral-nemo"), ToolCallFormat::kMistral);
  EXPECT_EQ(FormatOfFamily("hermes-like"), ToolCallFormat::kHermes);
}

TEST(ToolCallFormatTest, ThoseWithoutToolsHaveNone) {
  EXPECT_EQ(FormatOfModel("gemma-2"), std::nullopt);
  EXPECT_EQ(FormatOfModel("phi-3.5"), std::nullopt);
  for (const char* family :
       {"chatml", "documents", "gemma-3", "llama-2", "training", "zephyr"}) {
    EXPECT_EQ(FormatOfFamily(family), std::nullopt) << family;
  }
  EXPECT_EQ(FindToolCallFormat(""), std::nullopt);
}

TEST(ToolCallFormatTest, OtherWaysOfWritingThemAreNotTaken) {
  EXPECT_EQ(FormatOfFamily("typescript-tools"), std::nullopt);
  EXPECT_EQ(FindToolCallFormat("{{ '<tool_call>' + call.name }}"),
            std::nullopt);
  // Mistral Small 3.1 and later.
  EXPECT_EQ(FindToolCallFormat(R"({{ '[TOOL_CALLS]' + name + '[ARGS]' }})"),
            std::nullopt);
}

TEST(ToolCallFormatTest, CallsMayBeTags) {
  EXPECT_EQ(FormatOfFamily("glm-like"), ToolCallFormat::kGlm);
  EXPECT_EQ(FormatOfFamily("coder-like"), ToolCallFormat::kQwenCoder);
  // Qwen3-Coder.
  EXPECT_EQ(FindToolCallFormat(
                R"({{ '<tool_call>\n<function=' + call.name + '>\n' }})"
                R"({{ '"arguments": ' }})"),
            ToolCallFormat::kQwenCoder);
  // GLM 4.5.
  EXPECT_EQ(FindToolCallFormat(
                R"({{ '<tool_call>' + call.name }}<arg_key>{{ k }}</arg_key>)"),
            ToolCallFormat::kGlm);
}

TEST(ToolCallFormatTest, CallsMayHaveHeads) {
  EXPECT_EQ(FormatOfFamily("deepseek-like"), ToolCallFormat::kDeepseek);
  // DeepSeek V3.1.
  EXPECT_EQ(
      FindToolCallFormat(
          "{{ '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>' + call.name + "
          "'<｜tool▁sep｜>' + call.arguments + '<｜tool▁call▁end｜>' }}"),
      ToolCallFormat::kDeepseekV31);
  EXPECT_EQ(FindToolCallFormat(
                "<|tool_calls_section_begin|>{% for call in calls %}"
                "<|tool_call_begin|>{{ call.id }}<|tool_call_argument_begin|>"),
            ToolCallFormat::kKimi);
}

TEST(ToolCallFormatTest, QuotesMayHaveBackslashes) {
  EXPECT_EQ(FindToolCallFormat(
                R"({{ "<tool_call>\n{\"name\": \"f\", \"arguments\": {}}" }})"),
            ToolCallFormat::kHermes);
  EXPECT_EQ(FindToolCallFormat(
                R"({% if role == "ipython" %}{{ "{\"name\": \"f\", " }})"
                R"({{ "\"parameters\": " }})"),
            ToolCallFormat::kLlamaJson);
}

}  // namespace
}  // namespace baton::router
