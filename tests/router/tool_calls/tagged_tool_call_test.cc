#include "router/tool_calls/tagged_tool_call.h"

#include <random>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/json.h"
#include "router/tool_calls/tool_call_stream.h"
#include "tests/router/tool_calls/pushed_answer.h"

namespace baton::router::tagged_tool_call_test {
namespace {

using Kind = ToolCallEvent::Kind;
using Arguments = std::vector<std::pair<std::string, std::string>>;
using ListOfEvents = std::vector<ToolCallEvent>;

constexpr ToolCallFormat kTagged[] = {ToolCallFormat::kGlm,
                                      ToolCallFormat::kQwenCoder};

// As the models' chat templates write it.
std::string Tagged(ToolCallFormat format, const std::string& name,
                   const Arguments& arguments) {
  std::string text = "<tool_call>";
  if (format == ToolCallFormat::kGlm) {
    absl::StrAppend(&text, name, "\n");
    for (const auto& [key, value] : arguments) {
      absl::StrAppend(&text, "<arg_key>", key, "</arg_key>\n<arg_value>", value,
                      "</arg_value>\n");
    }
    return text + "</tool_call>";
  }
  absl::StrAppend(&text, "\n<function=", name, ">\n");
  for (const auto& [key, value] : arguments) {
    absl::StrAppend(&text, "<parameter=", key, ">\n", value,
                    "\n</parameter>\n");
  }
  return text + "</function>\n</tool_call>";
}

TEST(TaggedToolCallTest, ArgumentsBecomeJson) {
  const std::vector<std::pair<Arguments, std::string>> cases = {
      {{}, "{}"},
      {{{"city", "Paris"}}, R"({"city": "Paris"})"},
      {{{"city", "Paris"}, {"days", "3"}}, R"({"city": "Paris", "days": 3})"},
      {{{"a", " -1.5e3\n"}, {"b", "true"}, {"c", "null"}},
       R"({"a": -1.5e3, "b": true, "c": null})"},
      {{{"a", "True"}, {"b", "False"}, {"c", "None"}},
       R"({"a": true, "b": false, "c": null})"},
      {{{"a", R"(["x", {"y": []}])"}}, R"({"a": ["x", {"y": []}]})"},
      // No JSON, or more than a value.
      {{{"a", "1 2"}, {"b", "[1,"}, {"c", "nul"}, {"d", "-"}, {"e", ""}},
       R"({"a": "1 2", "b": "[1,", "c": "nul", "d": "-", "e": ""})"},
      {{{"a", "\"x\ny\""}}, R"({"a": "\"x\ny\""})"},
      {{{"a", "say \"hi\"\\\n\tto <b> & größe 🙂 \x01"}},
       R"({"a": "say \"hi\"\\\n\tto <b> & größe 🙂 \u0001"})"},
      {{{"a", "\n\nx\n\n"}}, R"({"a": "\n\nx\n\n"})"},
      {{{"say \"k\"", "x"}}, R"({"say \"k\"": "x"})"},
      // Parts of tags.
      {{{"a", "</arg</param</ \n</par \n<"}},
       R"({"a": "</arg</param</ \n</par \n<"})"}};
  for (const ToolCallFormat format : kTagged) {
    for (const auto& [arguments, json] : cases) {
      const std::string text = Tagged(format, "f", arguments);
      EXPECT_EQ(PushAnswer(format, text, {"f"}), CallEvents(0, "f", json));
      EXPECT_TRUE(nlohmann::json::accept(json)) << json;
    }
  }
}

TEST(TaggedToolCallTest, StringsAreStringsWhateverTheyLookLike) {
  constexpr ValueKind kText = ValueKind::kText;
  const TextsOfTools texts = {{"f", {{"zip", kText}, {"code", kText}}},
                              {"g", {{"days", kText}}}};
  for (const ToolCallFormat format : kTagged) {
    ToolCallStream stream(format, {"f"}, texts);
    const std::string text =
        Tagged(format, "f",
               {{"zip", "01234"}, {"days", "3"}, {"code", "{\"a\": null}"}});
    std::string arguments;
    for (const ToolCallEvent& event : stream.Push(text)) {
      if (event.kind == Kind::kArguments) arguments += event.text;
    }
    EXPECT_EQ(arguments,
              R"({"zip": "01234", "days": 3, "code": "{\"a\": null}"})");
    EXPECT_TRUE(stream.Finish().empty());
  }
}

TEST(TaggedToolCallTest, NullIsNoTextWhereItMayCome) {
  const TextsOfTools texts = {{"f", {{"a", ValueKind::kTextOrNull}}}};
  for (const auto& [value, json] :
       std::vector<std::pair<std::string, std::string>>{
           {"null", "null"},
           {"None", "null"},
           {"nul", "\"nul\""},
           {"nullo", "\"nullo\""},
           {"", "\"\""},
           {"true", "\"true\""},
           {"{\"a\": 1}", R"("{\"a\": 1}")"},
           {"12", "\"12\""}}) {
    for (const ToolCallFormat format : kTagged) {
      for (const size_t piece : {1, 1000}) {
        ToolCallStream stream(format, {"f"}, texts);
        const std::string text = Tagged(format, "f", {{"a", value}});
        std::string arguments;
        for (size_t at = 0; at < text.size(); at += piece) {
          for (const ToolCallEvent& event :
               stream.Push(text.substr(at, piece))) {
            if (event.kind == Kind::kArguments) arguments += event.text;
          }
        }
        EXPECT_EQ(arguments, absl::StrCat("{\"a\": ", json, "}"));
      }
    }
  }
}

TEST(TaggedToolCallTest, StringsComeInPieces) {
  ToolCallStream stream(ToolCallFormat::kGlm, {"write"},
                        {{"write", {{"text", ValueKind::kText}}}});
  EXPECT_EQ(stream.Push("Well.\n<tool_call>write\n<arg_k"),
            ListOfEvents{ContentEvent("Well.\n")});
  EXPECT_EQ(
      stream.Push("ey>text</arg_key>"),
      (ListOfEvents{{Kind::kBegun, 0, "write"}, {Kind::kArguments, 0, "{"}}));
  EXPECT_EQ(stream.Push("\n<arg_value>"),
            (ListOfEvents{{Kind::kArguments, 0, "\"text\": \""}}));
  EXPECT_EQ(stream.Push("Once \"upon"),
            (ListOfEvents{{Kind::kArguments, 0, "Once \\\"upon"}}));
  EXPECT_EQ(stream.Push("</arg_"), ListOfEvents{});
  EXPECT_EQ(stream.Push("value><arg_key>n</arg_key><arg_value>12"),
            (ListOfEvents{{Kind::kArguments, 0, "\""}}));
  EXPECT_EQ(stream.Push("</arg_value>"),
            (ListOfEvents{{Kind::kArguments, 0, ", \"n\": 12"}}));
  EXPECT_EQ(stream.Push("</tool_call>"),
            (ListOfEvents{{Kind::kArguments, 0, "}"}, {Kind::kEnded, 0, ""}}));
  EXPECT_EQ(stream.Push("\n"), ListOfEvents{});
  EXPECT_EQ(stream.Finish(), ListOfEvents{});
}

TEST(TaggedToolCallTest, AnyNumberWithTextAround) {
  for (const ToolCallFormat format : kTagged) {
    const std::string one = Tagged(format, "f", {{"a", "1"}});
    const std::string two = Tagged(format, "g", {});
    EXPECT_EQ(PushAnswer(format, absl::StrCat("\n", one, "\n", two, "\n"),
                         {"f", "g"}),
              JoinEvents({CallEvents(0, "f", R"({"a": 1})"),
                          CallEvents(1, "g", "{}")}));
    EXPECT_EQ(PushAnswer(format, absl::StrCat("I look.\n", one, "\nAnd: ", two,
                                              "Done.")),
              JoinEvents({{ContentEvent("I look.\n")},
                          CallEvents(0, "f", R"({"a": 1})"),
                          {ContentEvent("\nAnd: ")},
                          CallEvents(1, "g", "{}"),
                          {ContentEvent("Done.")}}));
  }
}

// With or without line breaks, and where a tag is forgotten.
TEST(TaggedToolCallTest, WhatModelsMakeOfIt) {
  const auto call = CallEvents(0, "f", R"({"a": 1})");
  for (const char* const text :
       {"<tool_call>f<arg_key>a</arg_key><arg_value>1</arg_value></tool_call>",
        "<tool_call>\n f \n<arg_key> a </arg_key>\n\n<arg_value>1</arg_value>"
        "\n</tool_call>"}) {
    EXPECT_EQ(PushAnswer(ToolCallFormat::kGlm, text, {"f"}), call);
  }
  for (const char* const text :
       {"<tool_call><function=f><parameter=a>1</parameter></function>"
        "</tool_call>",
        "<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n"
        "</tool_call>",
        "<tool_call><function=f><parameter=a>\n1</parameter></function>"}) {
    EXPECT_EQ(PushAnswer(ToolCallFormat::kQwenCoder, text, {"f"}), call);
  }
}

TEST(TaggedToolCallTest, WhatIsNoCallIsContent) {
  for (const ToolCallFormat format : kTagged) {
    for (const std::string& text :
         {Tagged(format, "unknown", {{"a", "1"}}), std::string("<tool_call>"),
          std::string("<tool_call>f, I think"), std::string("<tool_call>\n"),
          std::string("<tool_call></tool_call>"),
          std::string("<tool_call>{\"name\": \"f\"}</tool_call>"),
          std::string("<tool_call><function=f\n>"),
          std::string("<tool_call>f <arg>"), std::string("<function=f>"),
          absl::StrCat("<tool_call><function=", std::string(257, 'f'), ">"),
          absl::StrCat("<tool_call>", std::string(257, 'f'), "</tool_call>"),
          std::string("text </tool_call> </function>")}) {
      EXPECT_EQ(PushAnswer(format, text, {"f"}),
                ListOfEvents{ContentEvent(text)});
    }
  }
}

// Its arguments are what there was.
TEST(TaggedToolCallTest, CallsThatAreCutOrBroken) {
  EXPECT_EQ(PushAnswer(ToolCallFormat::kGlm,
                       "<tool_call>f\n<arg_key>a</arg_key><arg_value>1</arg_"
                       "value>\n<arg_key>b</arg_key><arg_value>[1, 2"),
            CallEvents(0, "f", R"({"a": 1)"));
  EXPECT_EQ(PushAnswer(ToolCallFormat::kGlm,
                       "<tool_call>f<arg_key>a</arg_key>\nso<b></tool_call>."),
            JoinEvents({CallEvents(0, "f", "{<arg_key>a</arg_key>\nso<b>"),
                        {ContentEvent(".")}}));
  EXPECT_EQ(PushAnswer(ToolCallFormat::kQwenCoder,
                       "<tool_call><function=f><parameter=a>1</parameter> and"),
            CallEvents(0, "f", R"({"a": 1 and)"));
  EXPECT_EQ(
      PushAnswer(ToolCallFormat::kQwenCoder,
                 absl::StrCat("<tool_call><function=f><parameter=",
                              std::string(300, 'k'), ">1</tool_call>")),
      CallEvents(0, "f",
                 absl::StrCat("{<parameter=", std::string(300, 'k'), ">1")));
}

TEST(TaggedToolCallTest, ValuesThatAreLongAreStrings) {
  std::string list = "[1";
  while (list.size() <= TaggedToolCall::kMaxHeldValue) list += ", 1";
  list += "]";
  for (const ToolCallFormat format : kTagged) {
    EXPECT_EQ(PushPieces(format, {"f"}, {Tagged(format, "f", {{"a", list}})}),
              CallEvents(0, "f", absl::StrCat("{\"a\": \"", list, "\"}")));
    std::string text;
    for (size_t i = 0; i < ToolCallStream::kMaxCalls + 2; ++i) {
      text += Tagged(format, "f", {});
    }
    const auto events = PushPieces(format, {"f"}, {text});
    ASSERT_EQ(events.size(), 3 * ToolCallStream::kMaxCalls + 1);
    EXPECT_EQ(events.back().text,
              Tagged(format, "f", {}) + Tagged(format, "f", {}));
  }
}

TEST(TaggedToolCallTest, RandomAnswersAreTheSameHoweverTheyAreCut) {
  const std::vector<std::string> parts = {
      "<tool_call>",
      "</tool_call>",
      "<function=f>",
      "</function>",
      "<parameter=",
      "a>",
      "</parameter>",
      "f",
      "\n",
      "<arg_key>",
      "</arg_key>",
      "<arg_value>",
      "</arg_value>",
      "<",
      ">",
      "1",
      "\"",
      "{}",
      "größe",
      " ",
      "<tool_call>f<arg_key>d</arg_key><arg_value>[2]</arg_value></tool_call>",
      "<tool_call><function=f><parameter=e>3</parameter></function></"
      "tool_call>",
      "<arg_key>a</arg_key><arg_value>",
      "<tool_call>f\n<arg_key>b</arg_key>",
      "<tool_call>\n<function=f>\n<parameter=c>\n"};
  std::mt19937 random(11);
  const auto pick = [&](size_t n) { return random() % n; };
  size_t calls = 0;
  size_t whole = 0;
  for (int i = 0; i < 40000; ++i) {
    std::string text;
    for (size_t n = pick(14); n > 0; --n) text += parts[pick(parts.size())];
    SCOPED_TRACE(absl::CEscape(text));
    const ToolCallFormat format = kTagged[pick(2)];
    const auto events = PushPieces(format, {"f"}, {text});
    std::vector<std::string> pieces;
    for (size_t at = 0; at < text.size();) {
      pieces.push_back(text.substr(at, pick(10)));
      at += pieces.back().size();
    }
    EXPECT_EQ(PushPieces(format, {"f"}, pieces), events);
    if (events.empty() || events[0].kind == Kind::kContent) {
      if (events.size() == 1) {
        EXPECT_EQ(events[0].text, text);
      }
    }
    for (const ToolCallEvent& event : events) {
      calls += event.kind == Kind::kBegun;
      if (event.kind == Kind::kArguments) {
        whole += nlohmann::json::accept(event.text);
      }
    }
    if (HasFailure()) break;
  }
  EXPECT_GT(calls, 2000u);
  EXPECT_GT(whole, 500u);
}

}  // namespace
}  // namespace baton::router::tagged_tool_call_test
