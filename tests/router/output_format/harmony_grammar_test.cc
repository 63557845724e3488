// Answers of some format as messages of Harmony.
#include "router/output_format/harmony_grammar.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_replace.h"
#include "router/output_format/response_grammars.h"
#include "scheduling/grammar_automaton.h"

namespace baton::router {
namespace {

constexpr auto kFormat = ToolCallFormat::kHarmony;

// Whether an answer may be `text`, in which markers are tokens.
bool AllowsMessages(const v1::ResponseFormat& format, const std::string& text,
                    ReasoningStart start = ReasoningStart::kHarmony) {
  const auto grammar = MakeGrammar(format, kFormat, start);
  EXPECT_TRUE(grammar.ok()) << grammar.status();
  if (!grammar.ok()) return false;
  return *scheduling::Matches(**grammar,
                              absl::StrReplaceAll(text, {{"<|", "\xff<|"}}));
}

v1::ResponseFormat Numbers(bool reasoning = true) {
  v1::ResponseFormat format;
  format.set_json_schema(R"({"type": "integer"})");
  format.set_reasoning(reasoning);
  return format;
}

v1::ResponseFormat MessageTo(const std::string& name, bool reasoning = true) {
  v1::ResponseFormat format;
  auto* const tool = format.mutable_tool_calls()->add_tools();
  tool->set_name(name);
  tool->set_parameters(
      R"({"type": "object", "properties": {"x": {"type": "integer"}},
          "required": ["x"], "additionalProperties": false})");
  format.mutable_tool_calls()->set_several(true);
  format.set_reasoning(reasoning);
  return format;
}

TEST(HarmonyGrammarTest, TheFinalMessageIsOfTheFormat) {
  const std::string thought =
      "<|channel|>analysis<|message|>Hm.\n\u20ac<|end|><|start|>assistant";
  for (const std::string& text :
       {std::string("<|channel|>final<|message|>42"),
        std::string("<|channel|>final <|constrain|>json<|message|>42"),
        std::string("<|channel|>final<|constrain|>json<|message|>42"),
        std::string("<|channel|>final json<|message|>42"),
        thought + "<|channel|>final<|message|>42",
        thought + thought + "<|channel|>final<|message|>42"}) {
    EXPECT_TRUE(AllowsMessages(Numbers(), text)) << text;
  }
  for (const std::string& text :
       {std::string("42"), thought, thought + "42",
        std::string("<|channel|>final<|message|>"),
        std::string("<|channel|>final<|message|>Hi"),
        std::string("<|channel|>final<|message|>42<|return|>"),
        std::string("<|channel|>analysis<|message|>42"),
        std::string("<|channel|>analysis<|message|>a<|call|><|end|>") +
            "<|start|>assistant<|channel|>final<|message|>42",
        std::string("<|channel|>commentary<|message|>42"),
        std::string("<|channel|>final code<|message|>42")}) {
    EXPECT_FALSE(AllowsMessages(Numbers(), text)) << text;
  }
  // Only JSON says that it is.
  v1::ResponseFormat digits;
  digits.set_regex("[0-9]+");
  digits.set_reasoning(true);
  EXPECT_TRUE(AllowsMessages(digits, "<|channel|>final<|message|>42"));
  EXPECT_FALSE(AllowsMessages(digits, "<|channel|>final json<|message|>42"));
}

TEST(HarmonyGrammarTest, MarkersAreTokensAndNoText) {
  const auto grammar =
      MakeGrammar(Numbers(), kFormat, ReasoningStart::kHarmony);
  ASSERT_TRUE(grammar.ok()) << grammar.status();
  EXPECT_FALSE(
      *scheduling::Matches(**grammar, "<|channel|>final<|message|>42"));
  v1::ResponseFormat any;
  any.mutable_json_object();
  any.set_reasoning(true);
  EXPECT_FALSE(
      AllowsMessages(any, "<|channel|>final<|message|>{\"a\": \"<|end|>\"}"));
}

TEST(HarmonyGrammarTest, OfAllOfItWhereTheBodyIsBegunOrNothingIsToldApart) {
  EXPECT_TRUE(AllowsMessages(Numbers(), "42", ReasoningStart::kNone));
  EXPECT_TRUE(AllowsMessages(Numbers(/*reasoning=*/false), "42"));
}

TEST(HarmonyGrammarTest, Calls) {
  for (const char* text :
       {"<|channel|>commentary to=functions.f <|constrain|>json<|message|>"
        "{\"x\":1}",
        "<|channel|>commentary to=functions.f<|message|>{\"x\": 1}",
        "<|channel|>commentary to=functions.f json<|message|>{\"x\": 1}",
        " to=functions.f<|channel|>commentary <|constrain|>json<|message|>"
        "{\"x\":1}",
        " to=functions.f<|channel|>commentary json<|message|>{\"x\":1}",
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant "
        "to=functions.f<|channel|>commentary<|message|>{\"x\":1}"}) {
    EXPECT_TRUE(AllowsMessages(MessageTo("f"), text)) << text;
  }
  for (const char* text :
       {"{\"x\": 1}", "<|channel|>final<|message|>{\"x\": 1}",
        "<|channel|>commentary to=functions.g<|message|>{\"x\": 1}",
        "<|channel|>commentary to=functions.f<|message|>{}",
        "<|channel|>commentary to=functions.f<|message|>{\"x\": 1}"
        "<|start|>assistant to=functions.f<|channel|>commentary<|message|>"
        "{\"x\": 1}"}) {
    EXPECT_FALSE(AllowsMessages(MessageTo("f"), text)) << text;
  }
  // Over gRPC, without thoughts.
  const std::string call =
      "<|channel|>commentary to=functions.f<|message|>{\"x\": 1}";
  EXPECT_TRUE(AllowsMessages(MessageTo("f", /*reasoning=*/false), call));
  EXPECT_THAT(MakeGrammar(MessageTo("a b"), kFormat, ReasoningStart::kHarmony)
                  .status()
                  .message(),
              testing::HasSubstr("a name that is no part of headers"));
}

}  // namespace
}  // namespace baton::router
