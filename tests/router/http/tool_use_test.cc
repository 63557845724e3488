// Tools of chat requests: what they may call and have to.
#include "router/http/tool_use.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "router/http/openai_request.h"
#include "router/invalid_field.h"

namespace baton::router::http {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr char kTools[] =
    R"("tools": [
      {"type": "function", "function": {"name": "f", "parameters":
        {"type": "object", "z": 1, "a": 2}}},
      {"type": "function", "function": {"name": "g"}},
      {"type": "search"}])";

absl::StatusOr<ApiRequest> ParseTools(const std::string& fields) {
  return ParseChatRequest(absl::StrCat(
      R"({"messages": [{"role": "user", "content": "Hi"}], )", fields, "}"));
}

ApiRequest Tools(const std::string& fields) {
  auto api = ParseTools(absl::StrCat(kTools, fields));
  EXPECT_TRUE(api.ok()) << api.status();
  return api.ok() ? *std::move(api) : ApiRequest();
}

TEST(ToolUseTest, CallsAreLookedForUnlessNoneAreWanted) {
  for (const char* fields :
       {"", R"(, "tool_choice": "auto")", R"(, "tool_choice": null)"}) {
    const ApiRequest api = Tools(fields);
    EXPECT_TRUE(api.tools.wanted) << fields;
    EXPECT_THAT(api.tools.names, ElementsAre("f", "g"));
    EXPECT_FALSE(api.prompts[0].has_response_format());
  }
  EXPECT_FALSE(Tools(R"(, "tool_choice": "none")").tools.wanted);
  for (const char* fields :
       {R"("tools": [])", R"("tools": null)", R"("tool_choice": "auto")",
        R"("tools": [{"type": "search"}])", R"("tools": "none of ours")"}) {
    const auto api = ParseTools(fields);
    ASSERT_TRUE(api.ok()) << api.status();
    EXPECT_FALSE(api->tools.wanted) << fields;
  }
}

// Where calls have no quotes, it takes the schema to tell.
TEST(ToolUseTest, ParametersThatAreStringsAreKnown) {
  const auto api = ParseTools(R"("tools": [
      {"type": "function", "function": {"name": "f", "parameters": {
        "type": "object", "properties": {
          "city": {"type": "string"}, "zip": {"type": "string", "pattern": "."},
          "days": {"type": "integer"}, "any": {}, "odd": {"type": 3},
          "unit": {"type": ["string", "null"]}, "wrong": "string"}}}},
      {"type": "function", "function": {"name": "g", "parameters": {
        "properties": {"x": {"type": "number"}}}}},
      {"type": "function", "function": {"name": "h", "parameters": {
        "properties": [{"type": "string"}]}}},
      {"type": "function", "function": {"name": "i", "parameters": "none"}}])");
  ASSERT_TRUE(api.ok()) << api.status();
  const TextsOfTools texts = TextsOf(api->tools);
  ASSERT_EQ(texts.size(), 1u);
  EXPECT_THAT(texts.at("f"),
              testing::UnorderedElementsAre(
                  testing::Pair("city", ValueKind::kText),
                  testing::Pair("zip", ValueKind::kText),
                  testing::Pair("unit", ValueKind::kTextOrNull)));
}

TEST(ToolUseTest, WhatHasToBeCalledIsAFormat) {
  const ApiRequest any = Tools(R"(, "tool_choice": "required")");
  const auto& calls = any.prompts[0].response_format().tool_calls();
  EXPECT_TRUE(calls.several());
  ASSERT_EQ(calls.tools_size(), 2);
  EXPECT_EQ(calls.tools(0).name(), "f");
  // As it was written: the order of names counts.
  EXPECT_EQ(calls.tools(0).parameters(), R"({"type":"object","z":1,"a":2})");
  EXPECT_EQ(calls.tools(1).parameters(), "");
  EXPECT_FALSE(
      Tools(R"(, "tool_choice": "required", "parallel_tool_calls": false)")
          .prompts[0]
          .response_format()
          .tool_calls()
          .several());
  const ApiRequest one = Tools(
      R"(, "tool_choice": {"type": "function", "function": {"name": "g"}})");
  EXPECT_THAT(one.tools.names, ElementsAre("g"));
  EXPECT_FALSE(one.prompts[0].response_format().tool_calls().several());
  EXPECT_EQ(one.prompts[0].response_format().tool_calls().tools_size(), 1);
  // The template sees all of it.
  EXPECT_THAT(one.prompts[0].chat().tools(), HasSubstr("search"));
}

TEST(ToolUseTest, ChoicesThatAreNoneAreNamed) {
  for (const char* choice : {R"("any")", "3", "{}", R"({"function": {}})",
                             R"({"function": {"name": ""}})"}) {
    const auto api =
        ParseTools(absl::StrCat(kTools, R"(, "tool_choice": )", choice));
    EXPECT_EQ(FieldOf(api.status()), "tool_choice") << choice;
  }
  EXPECT_THAT(
      std::string(
          ParseTools(R"("tool_choice": "required")").status().message()),
      HasSubstr("nothing to call"));
  EXPECT_EQ(FieldOf(ParseTools(absl::StrCat(kTools, R"(,
                "parallel_tool_calls": "yes")"))
                        .status()),
            "parallel_tool_calls");
}

}  // namespace
}  // namespace baton::router::http
