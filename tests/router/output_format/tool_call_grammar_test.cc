// Answers that are tool calls, in each way that models write them; what the
// grammar allows, the stream finds.
#include "router/output_format/tool_call_grammar.h"

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "router/output_format/response_grammars.h"
#include "router/tool_calls/tool_call_stream.h"
#include "scheduling/grammar_automaton.h"

namespace baton::router::tool_call_grammar_test {
namespace {

v1::ResponseFormat TwoTools(bool several) {
  v1::ResponseFormat format;
  v1::ResponseFormat::ToolCalls& calls = *format.mutable_tool_calls();
  calls.set_several(several);
  calls.add_tools()->set_name("f");
  calls.mutable_tools(0)->set_parameters(
      R"({"properties": {"x": {"type": "integer"}}, "required": ["x"],
          "additionalProperties": false})");
  calls.add_tools()->set_name("say \"g\"");
  return format;
}

bool Allows(bool several, ToolCallFormat way, const std::string& text) {
  const auto grammar = MakeGrammar(TwoTools(several), way);
  EXPECT_TRUE(grammar.ok()) << grammar.status();
  return grammar.ok() && *scheduling::Matches(**grammar, text);
}

// Names and arguments of an answer that is nothing but calls.
std::vector<std::string> Found(ToolCallFormat way, const std::string& text) {
  ToolCallStream stream(way, {"f", "say \"g\""});
  std::vector<ToolCallEvent> events = stream.Push(text);
  for (ToolCallEvent& last : stream.Finish()) events.push_back(last);
  std::vector<std::string> found;
  for (const ToolCallEvent& event : events) {
    EXPECT_NE(event.kind, ToolCallEvent::Kind::kContent) << event.text;
    if (event.kind == ToolCallEvent::Kind::kBegun) {
      found.push_back(event.text + " ");
    } else {
      found.back() += event.text;
    }
  }
  return found;
}

TEST(ToolCallGrammarTest, EachWayIsWhatTheStreamFinds) {
  const std::string one = R"({"name": "f", "arguments": {"x": 7}})";
  const std::string two = R"({"name": "say \"g\"", "arguments": {"y": []}})";
  const std::string llama = R"({"name": "f", "parameters": {"x": 7}})";
  const auto hermes = [](const std::string& call) {
    return "<tool_call>\n" + call + "\n</tool_call>";
  };
  struct Case {
    ToolCallFormat way;
    std::string one;
    std::string both;  // empty: it has no several
  };
  for (const Case& c :
       std::vector<Case>{{ToolCallFormat::kHermes, hermes(one),
                          hermes(one) + "\n" + hermes(two)},
                         {ToolCallFormat::kLlamaJson, llama, ""},
                         {ToolCallFormat::kMistral, "[" + one + "]",
                          "[" + one + ", " + two + "]"}}) {
    SCOPED_TRACE(c.one);
    EXPECT_TRUE(Allows(false, c.way, c.one));
    EXPECT_TRUE(Allows(true, c.way, c.one));
    EXPECT_THAT(Found(c.way, c.one), testing::ElementsAre(R"(f {"x": 7})"));
    EXPECT_FALSE(Allows(true, c.way, "x" + c.one));
    EXPECT_FALSE(Allows(true, c.way, c.one + " "));
    if (c.both.empty()) continue;
    EXPECT_FALSE(Allows(false, c.way, c.both));
    EXPECT_TRUE(Allows(true, c.way, c.both));
    EXPECT_THAT(Found(c.way, c.both),
                testing::ElementsAre(R"(f {"x": 7})", R"(say "g" {"y": []})"));
  }
}

TEST(ToolCallGrammarTest, HeadsAreWhatTheStreamFinds) {
  v1::ResponseFormat format = TwoTools(true);
  format.mutable_tool_calls()->mutable_tools(1)->set_name("g-2");
  struct Case {
    ToolCallFormat way;
    std::string one;
    std::string both;
  };
  const auto deepseek = [](const std::string& calls) {
    return "<｜tool▁calls▁begin｜>" + calls + "<｜tool▁calls▁end｜>";
  };
  const auto kimi = [](const std::string& calls) {
    return "<|tool_calls_section_begin|>" + calls +
           "<|tool_calls_section_end|>";
  };
  const std::string v3 =
      "<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{\"x\": 7}\n"
      "```<｜tool▁call▁end｜>";
  const std::string v31 =
      "<｜tool▁call▁begin｜>f<｜tool▁sep｜>{\"x\": 7}<｜tool▁call▁end｜>";
  const std::string k2 =
      "<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>"
      "{\"x\": 7}<|tool_call_end|>";
  for (const Case& c : std::vector<Case>{
           {ToolCallFormat::kDeepseek, deepseek(v3),
            deepseek(v3 + "\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>g-2\n"
                          "```json\n{\"y\": []}\n```<｜tool▁call▁end｜>")},
           {ToolCallFormat::kDeepseekV31, deepseek(v31),
            deepseek(v31 + "<｜tool▁call▁begin｜>g-2<｜tool▁sep｜>{\"y\": []}"
                           "<｜tool▁call▁end｜>")},
           {ToolCallFormat::kKimi, kimi(k2),
            kimi(k2 + "<|tool_call_begin|>functions.g-2:12"
                      "<|tool_call_argument_begin|>{\"y\": []}"
                      "<|tool_call_end|>")}}) {
    SCOPED_TRACE(c.one);
    const auto allows = [&](bool several, const std::string& text) {
      format.mutable_tool_calls()->set_several(several);
      const auto grammar = MakeGrammar(format, c.way);
      EXPECT_TRUE(grammar.ok()) << grammar.status();
      return grammar.ok() && *scheduling::Matches(**grammar, text);
    };
    EXPECT_TRUE(allows(false, c.one));
    EXPECT_TRUE(allows(true, c.one));
    EXPECT_FALSE(allows(false, c.both));
    EXPECT_TRUE(allows(true, c.both));
    EXPECT_FALSE(allows(true, c.one + "\n"));
    ToolCallStream stream(c.way, {"f", "g-2"});
    std::string found;
    for (const ToolCallEvent& event : stream.Push(c.both)) {
      EXPECT_NE(event.kind, ToolCallEvent::Kind::kContent) << event.text;
      found += event.text + "|";
    }
    EXPECT_EQ(found, "f|{\"x\": 7}||g-2|{\"y\": []}||");
    EXPECT_TRUE(stream.Finish().empty());
  }
  EXPECT_THAT(
      MakeGrammar(TwoTools(true), ToolCallFormat::kKimi).status().message(),
      testing::HasSubstr("\"say \"g\"\", a name that is no part of heads"));
}

TEST(ToolCallGrammarTest, ArgumentsAreWhatTheToolTakes) {
  const auto allows = [](const std::string& call) {
    return Allows(false, ToolCallFormat::kMistral, "[" + call + "]");
  };
  EXPECT_FALSE(allows(R"({"name": "f", "arguments": {}})"));
  EXPECT_FALSE(allows(R"({"name": "f", "arguments": {"x": "7"}})"));
  // Without a type they are objects all the same.
  EXPECT_FALSE(allows(R"({"name": "f", "arguments": 7})"));
  EXPECT_FALSE(allows(R"({"name": "h", "arguments": {}})"));
  EXPECT_TRUE(allows(R"({"name": "say \"g\"", "arguments": {}})"));
  EXPECT_FALSE(allows(R"({"name": "say \"g\"", "arguments": []})"));
  v1::ResponseFormat format = TwoTools(false);
  for (const char* schema :
       {"true", R"({"type": ["null", "object"]})",
        R"({"type": "object", "nullable": true})",
        R"({"anyOf": [{"type": "null"}, {"properties": {"q": {}}}]})",
        R"({"$ref": "#/$defs/a", "$defs": {"a": {"required": ["q"]}}})"}) {
    format.mutable_tool_calls()->mutable_tools(0)->set_parameters(schema);
    const auto grammar = MakeGrammar(format, ToolCallFormat::kMistral);
    ASSERT_TRUE(grammar.ok()) << grammar.status();
    EXPECT_TRUE(*scheduling::Matches(
        **grammar, R"([{"name": "f", "arguments": {"q": 1}}])"));
    EXPECT_FALSE(*scheduling::Matches(**grammar,
                                      R"([{"name": "f", "arguments": null}])"));
  }
}

TEST(ToolCallGrammarTest, SaysWhatIsWrong) {
  const auto why = [](const v1::ResponseFormat& format,
                      std::optional<ToolCallFormat> way) {
    return std::string(MakeGrammar(format, way).status().message());
  };
  EXPECT_EQ(why(TwoTools(true), std::nullopt),
            "asks for a tool call, and how this model writes them is not "
            "known");
  for (const ToolCallFormat way :
       {ToolCallFormat::kGlm, ToolCallFormat::kQwenCoder}) {
    EXPECT_EQ(why(TwoTools(true), way),
              "has a tool \"say \"g\"\", a name that is no part of tags");
  }
  v1::ResponseFormat format;
  format.mutable_tool_calls();
  EXPECT_EQ(why(format, ToolCallFormat::kHermes),
            "has 0 tools, it must have 1 to 1024");
  format.mutable_tool_calls()->add_tools();
  EXPECT_EQ(why(format, ToolCallFormat::kHermes),
            "has a tool whose name has 0 bytes, it must have 1 to 256");
  format = TwoTools(true);
  format.mutable_tool_calls()->mutable_tools(1)->set_parameters(
      R"({"type": "object", "not": {}})");
  EXPECT_EQ(why(format, ToolCallFormat::kHermes),
            "has the tool \"say \"g\"\", whose parameters' schema has \"not\" "
            "at #, which Baton does not know");
  EXPECT_STREQ(FormatName(format), "tool_choice");
  for (const char* schema :
       {R"({"type": "string"})", R"({"type": ["null", "array"]})", "[]",
        "false", "7"}) {
    format.mutable_tool_calls()->mutable_tools(1)->set_parameters(schema);
    EXPECT_THAT(why(format, ToolCallFormat::kHermes),
                testing::HasSubstr("schema allows no object"))
        << schema;
  }
  format.mutable_tool_calls()->mutable_tools(1)->set_parameters(
      R"({"anyOf": [{"type": "null"}]})");
  EXPECT_THAT(why(format, ToolCallFormat::kHermes),
              testing::HasSubstr("allows nothing"));
  // From a client of the gRPC API, where nothing looked at it before.
  const std::string deep(100000, '[');
  format.mutable_tool_calls()->mutable_tools(1)->set_parameters(
      "{\"a\": " + deep + std::string(deep.size(), ']') + "}");
  EXPECT_THAT(why(format, ToolCallFormat::kHermes),
              testing::HasSubstr("is nested deeper than 64"));
  for (int i = 0; i < 1024; ++i) format.mutable_tool_calls()->add_tools();
  EXPECT_EQ(why(format, ToolCallFormat::kHermes),
            "has 1026 tools, it must have 1 to 1024");
}

}  // namespace
}  // namespace baton::router::tool_call_grammar_test
