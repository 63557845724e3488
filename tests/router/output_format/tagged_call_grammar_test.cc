// Calls that are tags: what the grammar allows, the stream finds, and makes of
// it JSON that the function's schema allows.
#include "router/output_format/tagged_call_grammar.h"

#include <set>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/json.h"
#include "router/output_format/response_grammars.h"
#include "router/tool_calls/tool_call_stream.h"
#include "scheduling/grammar_automaton.h"
#include "tests/router/output_format/grammar_walker.h"
#include "tests/router/output_format/schema_validator.h"

namespace baton::router {
namespace {

using nlohmann::json;
using scheduling::GrammarAutomaton;
using testing::HasSubstr;

constexpr ToolCallFormat kTags[] = {ToolCallFormat::kGlm,
                                    ToolCallFormat::kQwenCoder};

v1::ResponseFormat CallOf(const std::string& schema, bool several = false) {
  v1::ResponseFormat format;
  v1::ResponseFormat::ToolCalls& calls = *format.mutable_tool_calls();
  calls.set_several(several);
  calls.add_tools()->set_name("f");
  calls.mutable_tools(0)->set_parameters(schema);
  calls.add_tools()->set_name("g");
  return format;
}

bool AllowsCall(const std::string& schema, ToolCallFormat way,
                const std::string& text, bool several = false) {
  const auto grammar = MakeGrammar(CallOf(schema, several), way);
  EXPECT_TRUE(grammar.ok()) << grammar.status();
  return grammar.ok() && *scheduling::Matches(**grammar, text);
}

constexpr char kWeather[] = R"({"type": "object", "properties": {
    "city": {"type": "string"}, "days": {"type": "integer"},
    "unit": {"type": "string", "enum": ["C", "F"]}}, "required": ["city"]})";

TEST(TaggedCallGrammarTest, IsWhatTemplatesWrite) {
  const std::string glm =
      "<tool_call>f\n<arg_key>city</arg_key>\n<arg_value>Oslo</arg_value>\n"
      "<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n"
      "<arg_key>unit</arg_key>\n<arg_value>C</arg_value>\n</tool_call>";
  const std::string coder =
      "<tool_call>\n<function=f>\n<parameter=city>\nOslo\n</parameter>\n"
      "<parameter=days>\n3\n</parameter>\n<parameter=unit>\nC\n</parameter>\n"
      "</function>\n</tool_call>";
  EXPECT_TRUE(AllowsCall(kWeather, ToolCallFormat::kGlm, glm));
  EXPECT_TRUE(AllowsCall(kWeather, ToolCallFormat::kQwenCoder, coder));
  EXPECT_FALSE(AllowsCall(kWeather, ToolCallFormat::kQwenCoder, glm));
  const std::string other = "<tool_call>g\n</tool_call>";
  EXPECT_TRUE(AllowsCall(kWeather, ToolCallFormat::kGlm, other));
  const std::string both = absl::StrCat(glm, "\n", other);
  EXPECT_TRUE(AllowsCall(kWeather, ToolCallFormat::kGlm, both, true));
  EXPECT_FALSE(AllowsCall(kWeather, ToolCallFormat::kGlm, both, false));
  EXPECT_FALSE(AllowsCall(kWeather, ToolCallFormat::kGlm, glm + " "));
}

TEST(TaggedCallGrammarTest, ArgumentsAreThoseOfTheSchema) {
  const auto allows = [](const std::string& arguments) {
    return AllowsCall(
        kWeather, ToolCallFormat::kGlm,
        absl::StrCat("<tool_call>f\n", arguments, "</tool_call>"));
  };
  const auto argument = [](const std::string& key, const std::string& value) {
    return absl::StrCat("<arg_key>", key, "</arg_key>\n<arg_value>", value,
                        "</arg_value>\n");
  };
  EXPECT_FALSE(allows(""));
  EXPECT_FALSE(allows(argument("days", "3")));
  EXPECT_FALSE(allows(argument("town", "Oslo")));
  EXPECT_TRUE(allows(argument("city", "")));
  EXPECT_TRUE(allows(argument("city", "a < b </arg <</arg_valu>\n\"é\"\\")));
  EXPECT_FALSE(allows(argument("city", "</arg_value>")));
  EXPECT_FALSE(allows(argument("city", "\xff")));
  EXPECT_FALSE(allows(argument("city", "x") + argument("days", "3.5")));
  EXPECT_FALSE(allows(argument("city", "x") + argument("unit", "K")));
  EXPECT_FALSE(allows(argument("city", "x") + argument("unit", "\"C\"")));
}

// Random calls, by other code than ours.
TEST(TaggedCallGrammarTest, WhatItAllowsIsFoundAndIsWhatTheSchemaAllows) {
  const std::vector<std::string> schemas = {
      kWeather,
      R"({"properties": {"a": {"type": "string"}, "b": {"type": "string"}},
          "required": ["b"], "additionalProperties": false})",
      R"({"type": "object", "properties": {"n": {"type": "number"},
          "t": {"type": ["string", "null"]}, "e": {"enum": ["y", "1", null]},
          "o": {"anyOf": [{"type": "string"}, {"type": "null"}]}, "k": {"enum": ["x", 1, null]},
          "l": {"type": "array", "items": {"type": "integer"}, "maxItems": 3},
          "c": {"type": "string", "const": "so"}, "z": {"type": "boolean"}},
          "required": ["n", "t", "k"]})",
      R"({"type": "object", "properties": {"tree": {"$ref": "#/$defs/node"}},
          "$defs": {"node": {"type": "object", "properties": {
          "next": {"$ref": "#/$defs/node"}}, "additionalProperties": false}}})"};
  size_t whole = 0;
  for (const std::string& schema : schemas) {
    const json parsed = json::parse(schema);
    const TextsOfTools texts = {{"f", TextParametersOf(schema)}};
    for (const ToolCallFormat way : kTags) {
      const auto grammar = MakeGrammar(CallOf(schema), way);
      ASSERT_TRUE(grammar.ok()) << grammar.status() << schema;
      auto automaton = GrammarAutomaton::Make(**grammar);
      ASSERT_TRUE(automaton.ok()) << automaton.status();
      const std::vector<std::string> endings = {
          "\"", "}", "]", "0",
          way == ToolCallFormat::kGlm ? "</arg_value>" : "</parameter>"};
      std::set<std::string> different;
      for (uint32_t seed = 0; seed < 300; ++seed) {
        const std::string text =
            GrammarWalker(seed, endings).Walk(automaton->get());
        ASSERT_FALSE((*automaton)->exhausted());
        if ((*automaton)->crowded()) (*automaton)->Forget();
        if (text.empty()) continue;
        SCOPED_TRACE(absl::CEscape(text));
        ToolCallStream stream(way, {"f", "g"}, texts);
        std::vector<ToolCallEvent> events = stream.Push(text);
        EXPECT_TRUE(stream.Finish().empty());
        ASSERT_GE(events.size(), 3u);
        EXPECT_EQ(events.front().kind, ToolCallEvent::Kind::kBegun);
        EXPECT_EQ(events.back().kind, ToolCallEvent::Kind::kEnded);
        std::string arguments;
        for (const ToolCallEvent& event : events) {
          ASSERT_NE(event.kind, ToolCallEvent::Kind::kContent);
          if (event.kind == ToolCallEvent::Kind::kArguments) {
            arguments += event.text;
          }
        }
        const json value = json::parse(arguments, nullptr, false);
        ASSERT_FALSE(value.is_discarded()) << arguments;
        different.insert(arguments);
        ++whole;
        if (events.front().text == "g") continue;
        EXPECT_EQ(Violation(parsed, parsed, value), "") << arguments;
      }
      EXPECT_GT(different.size(), 10u) << schema;
    }
  }
  EXPECT_GT(whole, 1500u);
}

TEST(TaggedCallGrammarTest, WhatTagsCannotSayIsNamed) {
  const auto why = [](const std::string& schema) {
    const auto grammar = MakeGrammar(CallOf(schema), ToolCallFormat::kGlm);
    return std::string(grammar.status().message());
  };
  EXPECT_EQ(why(R"({"type": "object", "properties": {
            "a": {"type": "string", "maxLength": 3}}})"),
            "has the tool \"f\", whose parameters' schema has \"maxLength\" at "
            "#/properties/a, which Baton does not know of calls that are tags");
  EXPECT_THAT(why(R"({"type": "object", "maxProperties": 1,
                      "additionalProperties": false,
                      "properties": {"a": {"type": "string"}}})"),
              HasSubstr("has \"maxProperties\" at #, which"));
  EXPECT_THAT(why(R"({"type": "object", "required": ["a"]})"),
              HasSubstr("requires \"a\", which has no schema"));
  EXPECT_THAT(why(R"({"type": "object", "properties": {"a<b": {}}})"),
              HasSubstr("has a name at #/properties/a<b that is no part"));
  EXPECT_THAT(why(R"({"type": "object", "properties": {
                      "a": {"type": "string", "enum": ["</arg_value>"]}}})"),
              HasSubstr("has a value at #/properties/a with </arg_value>"));
  // As of other models.
  EXPECT_THAT(why(R"({"type": "object", "properties": {"a": {"not": {}}}})"),
              HasSubstr("has \"not\" at #/properties/a, which Baton does"));
  EXPECT_THAT(why("[]"), HasSubstr("schema allows no object"));
}

}  // namespace
}  // namespace baton::router
