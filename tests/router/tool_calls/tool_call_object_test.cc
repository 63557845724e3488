#include "router/tool_calls/tool_call_object.h"

#include <optional>
#include <string>
#include <utility>

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "common/json.h"

namespace baton::router {
namespace {

using NameAndArguments = std::pair<std::string, std::string>;

// The call that the text is, whole; nothing if it is none.
std::optional<NameAndArguments> ReadCall(const std::string& text,
                                         const ToolCallRules& rules = {},
                                         bool first_key_counts = false) {
  ToolCallObject call(&rules, first_key_counts);
  std::string arguments;
  for (size_t i = 0; i < text.size(); ++i) {
    const ToolCallObject::Step step = call.Take(text[i]);
    if (step == ToolCallObject::Step::kBad) return std::nullopt;
    arguments += call.TakeArguments();
    if (step == ToolCallObject::Step::kLast) {
      EXPECT_EQ(i + 1, text.size());
      EXPECT_TRUE(call.begun());
      EXPECT_TRUE(call.has_all_arguments());
      return NameAndArguments(call.name(), arguments);
    }
  }
  return std::nullopt;
}

// How many bytes it takes to say that the text is no call.
size_t BytesUntilBad(const std::string& text, const ToolCallRules& rules,
                     bool first_key_counts) {
  ToolCallObject call(&rules, first_key_counts);
  for (size_t i = 0; i < text.size(); ++i) {
    if (call.Take(text[i]) == ToolCallObject::Step::kBad) return i + 1;
  }
  return 0;
}

TEST(ToolCallObjectTest, TakesKeysInEitherOrder) {
  const NameAndArguments call("f", R"({"x": [1, "}"]})");
  EXPECT_EQ(ReadCall(R"({"name": "f", "arguments": {"x": [1, "}"]}})"), call);
  EXPECT_EQ(ReadCall(R"({"arguments": {"x": [1, "}"]}, "name": "f"})"), call);
  EXPECT_EQ(ReadCall("{\n\"name\" :\t\"f\"\r\n, \"arguments\":{} }"),
            NameAndArguments("f", "{}"));
}

TEST(ToolCallObjectTest, PassesOverOtherKeys) {
  EXPECT_EQ(
      ReadCall(R"({"id": 7, "name": "f", "x": {"name": "g", "arguments": {}},)"
               R"("arguments": {"name": "h"}, "n": null, "e": 1.5e3})"),
      NameAndArguments("f", R"({"name": "h"})"));
  // Only the first ones count.
  EXPECT_EQ(ReadCall(R"({"name": "f", "arguments": {"a": 1}, "name": "g",)"
                     R"("arguments": [2]})"),
            NameAndArguments("f", R"({"a": 1})"));
}

TEST(ToolCallObjectTest, ArgumentsMayBeParametersWhereTheRulesSaySo) {
  const std::string text = R"({"name": "f", "parameters": {"x": 1}})";
  EXPECT_EQ(ReadCall(text), std::nullopt);
  EXPECT_EQ(ReadCall(text, {.parameters = true, .names = {}}),
            NameAndArguments("f", R"({"x": 1})"));
}

TEST(ToolCallObjectTest, RefusesWhatIsNoCall) {
  for (const std::string text :
       {R"({})", R"({"name": "f"})", R"({"arguments": {}})",
        R"({"name": 1, "arguments": {}})", R"({"name": "", "arguments": {}})",
        R"({"name": "f", "arguments": "{}"})",
        R"({"name": "f", "arguments": [1]})",
        R"({"name": "f", "arguments": null})", R"({"name": "f" "arguments")",
        R"({"name": "f", "arguments": {x: 1}})", R"({name: "f"})", R"(["name")",
        R"({"name": "f", "arguments": {}, })", R"({, "name": "f"})",
        R"({"name": "\ud800", "arguments": {}})"}) {
    EXPECT_EQ(ReadCall(text), std::nullopt) << text;
  }
}

TEST(ToolCallObjectTest, BeginsOnceTheArgumentsAreAnObject) {
  const ToolCallRules rules;
  ToolCallObject call(&rules, /*first_key_counts=*/false);
  for (const char c : std::string(R"({"name": "f", "arguments": )")) {
    ASSERT_EQ(call.Take(c), ToolCallObject::Step::kMore);
    EXPECT_FALSE(call.begun());
  }
  EXPECT_EQ(call.Take('{'), ToolCallObject::Step::kMore);
  EXPECT_TRUE(call.begun());
  EXPECT_FALSE(call.has_all_arguments());
  EXPECT_EQ(call.TakeArguments(), "{");
  EXPECT_EQ(call.TakeArguments(), "");
  EXPECT_EQ(call.Take('}'), ToolCallObject::Step::kMore);
  EXPECT_TRUE(call.has_all_arguments());
  EXPECT_EQ(call.TakeArguments(), "}");
  EXPECT_EQ(call.Take('}'), ToolCallObject::Step::kLast);
}

TEST(ToolCallObjectTest, NamesAreReadAndBounded) {
  EXPECT_EQ(ReadCall(R"({"name": "\u0066\"é", "arguments": {}})"),
            NameAndArguments("f\"é", "{}"));
  const auto with_name = [](const std::string& name) {
    return absl::StrCat(R"({"name": ")", name, R"(", "arguments": {}})");
  };
  const size_t most = ToolCallRules::kMaxNameBytes;
  EXPECT_TRUE(ReadCall(with_name(std::string(most, 'n'))));
  EXPECT_FALSE(ReadCall(with_name(std::string(most + 1, 'n'))));
  std::string escaped;
  for (size_t i = 0; i < most; ++i) escaped += "\\u006e";
  EXPECT_EQ(ReadCall(with_name(escaped)),
            NameAndArguments(std::string(most, 'n'), "{}"));
  EXPECT_FALSE(ReadCall(with_name(escaped + "\\u006e")));
  // Known before the name's end.
  EXPECT_LT(BytesUntilBad(with_name(std::string(99999, 'n')), ToolCallRules(),
                          /*first_key_counts=*/false),
            2000);
}

TEST(ToolCallObjectTest, OtherNamesAreRefusedAtTheirEnd) {
  const ToolCallRules rules{.parameters = false, .names = {"f", "g"}};
  EXPECT_TRUE(ReadCall(R"({"name": "g", "arguments": {}})", rules));
  EXPECT_EQ(BytesUntilBad(R"({"name": "h", "arguments": {}})", rules,
                          /*first_key_counts=*/false),
            absl::string_view(R"({"name": "h")").size());
}

TEST(ToolCallObjectTest, FirstKeysMayCount) {
  for (const std::string text :
       {R"({"name": "f", "arguments": {}, "other": 1})",
        R"({"arguments": {}, "other": 1, "name": "f"})",
        R"({"type": "function", "name": "f", "arguments": {}})"}) {
    EXPECT_EQ(ReadCall(text, {}, /*first_key_counts=*/true),
              NameAndArguments("f", "{}"))
        << text;
  }
  const ToolCallRules rules;
  EXPECT_EQ(BytesUntilBad(R"({"city": "Paris"})", rules,
                          /*first_key_counts=*/true),
            absl::string_view(R"({"city")").size());
  EXPECT_EQ(BytesUntilBad(R"({"type": "object"})", rules,
                          /*first_key_counts=*/true),
            absl::string_view(R"({"type": "object")").size());
}

TEST(ToolCallObjectTest, ControlCharactersInArgumentsAreEscaped) {
  const auto call =
      ReadCall("{\"name\": \"f\", \"arguments\": {\n\"a\n\": \"b\t\\n\x01\"}}");
  ASSERT_TRUE(call);
  EXPECT_EQ(call->second, "{\n\"a\\u000a\": \"b\\u0009\\n\\u0001\"}");
  EXPECT_EQ(nlohmann::json::parse(call->second).at("a\n"), "b\t\n\x01");
}

}  // namespace
}  // namespace baton::router
