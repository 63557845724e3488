#include "router/tool_calls/tool_call_stream.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "tests/router/tool_calls/pushed_answer.h"

namespace baton::router {
namespace {

using enum ToolCallFormat;
using Kind = ToolCallEvent::Kind;
using Events = std::vector<ToolCallEvent>;

const std::string kParis =
    R"({"name": "weather", "arguments": {"city": "Paris"}})";
const std::string kRome =
    R"({"arguments": {"city": "Rome"}, "name": "weather"})";

Events Paris(size_t call) {
  return CallEvents(call, "weather", R"({"city": "Paris"})");
}
Events Rome(size_t call) {
  return CallEvents(call, "weather", R"({"city": "Rome"})");
}

std::string Marked(const std::string& json) {
  return absl::StrCat("<tool_call>\n", json, "\n</tool_call>");
}

// All of it is content.
void ExpectContent(ToolCallFormat format, const std::string& text,
                   const std::vector<std::string>& names = {}) {
  EXPECT_EQ(PushAnswer(format, text, names), Events{ContentEvent(text)});
}

TEST(ToolCallStreamTest, TextWithoutCallsIsContent) {
  for (const ToolCallFormat format : {kHermes, kLlamaJson, kMistral}) {
    for (const std::string text :
         {"Hello!", "\n\n Hello \n", "  \n", "a < b [c] {d}; \"e\"",
          "Größe: 5 € 🙂", "<tool_cal> [TOOL_CALL] ", "[1, 2]", "[\n]",
          "[", "{}", "{\"city\": \"Paris\"}", "[{\"city\": 1}]", "[[{", "{",
          "</tool_call>", "<<tool_call", "[TOOL_CALLS"}) {
      ExpectContent(format, text);
    }
    EXPECT_EQ(PushAnswer(format, ""), Events{});
  }
}

TEST(ToolCallStreamTest, TextIsNotHeldBackLongerThanItMustBe) {
  ToolCallStream stream(kHermes, {});
  EXPECT_EQ(stream.Push(" \n"), Events{});
  EXPECT_EQ(stream.Push("Look: "), Events{ContentEvent(" \nLook: ")});
  EXPECT_EQ(stream.Push("x <tool_"), Events{ContentEvent("x ")});
  EXPECT_EQ(stream.Push("box> <"), Events{ContentEvent("<tool_box> ")});
  EXPECT_EQ(stream.Push("<"), Events{ContentEvent("<")});
  EXPECT_EQ(stream.Finish(), Events{ContentEvent("<")});
}

TEST(ToolCallStreamTest, CallsComeInPieces) {
  ToolCallStream stream(kHermes, {"weather"});
  EXPECT_EQ(stream.Push("<tool_call>\n{\"name\": \"weather\""), Events{});
  EXPECT_EQ(stream.Push(", \"arguments\": {"),
            (Events{{Kind::kBegun, 0, "weather"}, {Kind::kArguments, 0, "{"}}));
  EXPECT_EQ(stream.calls(), 1);
  EXPECT_EQ(stream.Push("\"city\": \"Pa"),
            (Events{{Kind::kArguments, 0, "\"city\": \"Pa"}}));
  EXPECT_EQ(stream.Push("ris\"}"), (Events{{Kind::kArguments, 0, "ris\"}"}}));
  EXPECT_EQ(stream.Push("}\n"), (Events{{Kind::kEnded, 0, ""}}));
  EXPECT_EQ(stream.Push("</tool_call>"), Events{});
  EXPECT_EQ(stream.Finish(), Events{});
}

TEST(ToolCallStreamTest, HermesCallsHaveTextAround) {
  EXPECT_EQ(PushAnswer(kHermes, Marked(kParis)), Paris(0));
  EXPECT_EQ(
      PushAnswer(kHermes, absl::StrCat("<tool_call>", kRome, "</tool_call>")),
      Rome(0));
  EXPECT_EQ(PushAnswer(
                kHermes,
                absl::StrCat("\n\n", Marked(kParis), "\n", Marked(kRome), "\n"),
                {"weather", "time"}),
            JoinEvents({Paris(0), Rome(1)}));
  EXPECT_EQ(
      PushAnswer(kHermes, absl::StrCat("I look.\n", Marked(kParis), "\nAnd:\n",
                                       Marked(kRome), "\nDone.\n")),
      JoinEvents({{ContentEvent("I look.\n")},
                  Paris(0),
                  {ContentEvent("\nAnd:\n")},
                  Rome(1),
                  {ContentEvent("\nDone.\n")}}));
}

TEST(ToolCallStreamTest, LlamaCallsAreTheWholeAnswer) {
  const std::string paris =
      R"({"name": "weather", "parameters": {"city": "Paris"}})";
  EXPECT_EQ(PushAnswer(kLlamaJson, paris), Paris(0));
  EXPECT_EQ(PushAnswer(kLlamaJson, absl::StrCat("\n ", kParis, "\n")),
            Paris(0));
  EXPECT_EQ(PushAnswer(kLlamaJson, absl::StrCat(paris, ";\n ", kRome, " ; ")),
            JoinEvents({Paris(0), Rome(1)}));
  ExpectContent(kLlamaJson, absl::StrCat("Look: ", paris));
  EXPECT_EQ(PushAnswer(kLlamaJson, absl::StrCat(paris, "\n", paris)),
            JoinEvents({Paris(0), {ContentEvent("\n" + paris)}}));
  EXPECT_EQ(PushAnswer(kLlamaJson, absl::StrCat(paris, "; thus; ", paris)),
            JoinEvents({Paris(0), {ContentEvent("; thus; " + paris)}}));
}

TEST(ToolCallStreamTest, MistralCallsAreAnArray) {
  const std::string both = absl::StrCat("[", kParis, ", ", kRome, "]");
  for (const std::string begin :
       {"[TOOL_CALLS] ", "[TOOL_CALLS]", "", " ", "\n[TOOL_CALLS]\n"}) {
    EXPECT_EQ(PushAnswer(kMistral, begin + both),
              JoinEvents({Paris(0), Rome(1)}));
    EXPECT_EQ(PushAnswer(kMistral, absl::StrCat(begin, "[ ", kParis, "\n] ")),
              Paris(0));
  }
  EXPECT_EQ(
      PushAnswer(kMistral, absl::StrCat("So: [TOOL_CALLS]", both, "\nDone.")),
      JoinEvents({{ContentEvent("So: ")},
                  Paris(0),
                  Rome(1),
                  {ContentEvent("\nDone.")}}));
  // Without the marker only at the beginning.
  ExpectContent(kMistral, "So: " + both);
  ExpectContent(kMistral, "[TOOL_CALLS] []");
  ExpectContent(kMistral, "[TOOL_CALLS] " + kParis);
  EXPECT_EQ(PushAnswer(kMistral, "[[TOOL_CALLS]" + both),
            JoinEvents({{ContentEvent("[")}, Paris(0), Rome(1)}));
}

TEST(ToolCallStreamTest, ArgumentsAreWhatTheModelWrote) {
  for (const std::string arguments :
       {R"({})", R"({ "a" : { "b": [ { } , "{[" ] } })",
        R"({"text": "\"}\\", "end": "</tool_call>", "x": "]};"})",
        R"({"größe": "5 €", "🙂": "\ud83d\ude42"})",
        "{\n  \"n\": -1.5e3,\n  \"ok\": true\n}"}) {
    const std::string call =
        absl::StrCat(R"({"name": "f", "arguments": )", arguments, "}");
    const Events events = CallEvents(0, "f", arguments);
    EXPECT_EQ(PushAnswer(kHermes, Marked(call)), events);
    EXPECT_EQ(PushAnswer(kLlamaJson, call), events);
    EXPECT_EQ(PushAnswer(kMistral, absl::StrCat("[", call, "]")), events);
  }
}

TEST(ToolCallStreamTest, WhatIsNoCallIsContent) {
  for (const std::string json :
       {R"({"name": "f"})", R"({"arguments": {"a": 1}})",
        R"({"name": 5, "arguments": {}})", R"({"name": "f", "arguments": "x"})",
        R"({"name": "f", "arguments": [{}]})", R"({"name": "f", oops})",
        R"({"arguments": {"a": 01}, "name": "f"})", "f(x)", "{}"}) {
    ExpectContent(kHermes, absl::StrCat("\n", Marked(json), "\n"));
    ExpectContent(kLlamaJson, json);
    ExpectContent(kMistral, absl::StrCat(" [TOOL_CALLS][", json, "]"));
    ExpectContent(kMistral, absl::StrCat("[", json, "]"));
    // Calls before stay calls.
    EXPECT_EQ(
        PushAnswer(kHermes, absl::StrCat(Marked(kParis), "\n", Marked(json),
                                         Marked(kRome))),
        JoinEvents({Paris(0), {ContentEvent("\n" + Marked(json))}, Rome(1)}));
    EXPECT_EQ(
        PushAnswer(kMistral, absl::StrCat("[", kParis, ", ", json, "]")),
        JoinEvents({Paris(0), {ContentEvent(absl::StrCat(", ", json, "]"))}}));
  }
  EXPECT_EQ(PushAnswer(kHermes, "<tool_call>\n" + Marked(kParis)),
            JoinEvents({{ContentEvent("<tool_call>\n")}, Paris(0)}));
}

TEST(ToolCallStreamTest, OtherJsonIsNotHeldBack) {
  ToolCallStream llama(kLlamaJson, {});
  EXPECT_EQ(llama.Push("{\"city"), Events{});
  EXPECT_EQ(llama.Push("\": "), Events{ContentEvent("{\"city\": ")});
  EXPECT_EQ(llama.Push(kParis), Events{ContentEvent(kParis)});
  ToolCallStream mistral(kMistral, {});
  EXPECT_EQ(mistral.Push("[{\"city\""), Events{ContentEvent("[{\"city\"")});
  // Behind a marker, another key may come first.
  const std::string call =
      R"({"id": 1, "name": "weather", "arguments": {"city": "Paris"}})";
  EXPECT_EQ(PushAnswer(kHermes, Marked(call)), Paris(0));
  EXPECT_EQ(PushAnswer(kMistral, absl::StrCat("[TOOL_CALLS][", call, "]")),
            Paris(0));
}

TEST(ToolCallStreamTest, MarkersOutOfPlaceAreContent) {
  EXPECT_EQ(PushAnswer(kHermes, Marked(kParis) + "\n</tool_call>"),
            JoinEvents({Paris(0), {ContentEvent("\n</tool_call>")}}));
  EXPECT_EQ(PushAnswer(kHermes, Marked(kParis) + "\n<tool_c"),
            JoinEvents({Paris(0), {ContentEvent("\n<tool_c")}}));
  EXPECT_EQ(PushAnswer(kHermes, absl::StrCat("<tool_call>", kParis, "<tool_c")),
            JoinEvents({Paris(0), {ContentEvent("<tool_c")}}));
  EXPECT_EQ(PushAnswer(kHermes,
                       absl::StrCat("<tool_call>", kParis, " x</tool_call>")),
            JoinEvents({Paris(0), {ContentEvent(" x</tool_call>")}}));
  EXPECT_EQ(PushAnswer(kLlamaJson, kParis + "]"),
            JoinEvents({Paris(0), {ContentEvent("]")}}));
  EXPECT_EQ(
      PushAnswer(kMistral,
                 absl::StrCat("[", kParis, ", ", kRome, "] [TOOL_CALLS] [ ")),
      JoinEvents({Paris(0), Rome(1), {ContentEvent(" [TOOL_CALLS] [ ")}}));
  EXPECT_EQ(PushAnswer(kMistral, absl::StrCat("[", kParis, "]; ")),
            JoinEvents({Paris(0), {ContentEvent("; ")}}));
}

TEST(ToolCallStreamTest, OtherNamesAreContent) {
  const std::vector<std::string> names = {"time", "place"};
  ExpectContent(kHermes, Marked(kParis), names);
  ExpectContent(kHermes, Marked(kRome), names);
  ExpectContent(kLlamaJson, kParis, names);
  ExpectContent(kMistral, absl::StrCat("[", kParis, "]"), names);
  ExpectContent(kMistral, absl::StrCat("[TOOL_CALLS] [", kParis, "]"), names);
}

TEST(ToolCallStreamTest, UnfinishedAnswersBreakCallsOff) {
  const std::string all = "Hm.\n" + Marked(kParis);
  const std::string begun = R"(Hm.
<tool_call>
{"name": "weather", "arguments": {)";
  for (size_t size = 0; size <= all.size(); ++size) {
    SCOPED_TRACE(size);
    const std::string text = all.substr(0, size);
    if (size == 0) {
      EXPECT_EQ(PushAnswer(kHermes, text), Events{});
    } else if (size < begun.size()) {
      ExpectContent(kHermes, text);
    } else {
      const std::string arguments =
          absl::StrCat("{", text.substr(begun.size())).substr(0, 17);
      EXPECT_EQ(PushAnswer(kHermes, text),
                JoinEvents({{ContentEvent("Hm.\n")},
                            CallEvents(0, "weather", arguments)}));
    }
  }
  EXPECT_EQ(PushAnswer(kMistral, absl::StrCat("[", kParis, ", ")), Paris(0));
  EXPECT_EQ(PushAnswer(kMistral, absl::StrCat("[", kParis, ", {\"name")),
            JoinEvents({Paris(0), {ContentEvent(", {\"name")}}));
}

TEST(ToolCallStreamTest, BrokenArgumentsGoOnToTheEnd) {
  const std::string broken = R"({"name": "f", "arguments": {"a": oops})";
  EXPECT_EQ(PushAnswer(kLlamaJson, broken + "} </tool_call> {"),
            CallEvents(0, "f", R"({"a": oops}} </tool_call> {)"));
  EXPECT_EQ(PushAnswer(kMistral, absl::StrCat("[", broken, ", ", kParis)),
            CallEvents(0, "f", R"({"a": oops}, )" + kParis));
  // Hermes' marker ends them.
  EXPECT_EQ(PushAnswer(kHermes, absl::StrCat(Marked(broken), Marked(kParis))),
            JoinEvents({CallEvents(0, "f", "{\"a\": oops}\n"), Paris(1)}));
  EXPECT_EQ(
      PushAnswer(kHermes,
                 absl::StrCat("<tool_call>", broken, "<tool_call>", kRome)),
      CallEvents(0, "f", absl::StrCat("{\"a\": oops}<tool_call>", kRome)));
  EXPECT_EQ(PushAnswer(kHermes, absl::StrCat("<tool_call>", broken, "</tool")),
            CallEvents(0, "f", "{\"a\": oops}</tool"));
  EXPECT_EQ(PushAnswer(kHermes, absl::StrCat("<tool_call>", broken,
                                             "< </tool <</tool_call>\n")),
            CallEvents(0, "f", "{\"a\": oops}< </tool <"));
  EXPECT_EQ(
      PushAnswer(kHermes, R"(<tool_call>{"name": "f", "arguments": {"a": 1)"
                          "</tool_call> ok"),
      JoinEvents({CallEvents(0, "f", R"({"a": 1)"), {ContentEvent(" ok")}}));
}

TEST(ToolCallStreamTest, WhatComesBehindTheArgumentsDoesNotBreakThem) {
  // A brace is missing.
  const std::string open = kParis.substr(0, kParis.size() - 1);
  EXPECT_EQ(PushAnswer(kHermes, absl::StrCat(Marked(open), Marked(kRome))),
            JoinEvents({Paris(0), Rome(1)}));
  EXPECT_EQ(PushAnswer(kMistral, absl::StrCat("[", open, "]")), Paris(0));
  EXPECT_EQ(PushAnswer(kLlamaJson, absl::StrCat(open, ";", kRome)),
            JoinEvents({Paris(0), Rome(1)}));
  EXPECT_EQ(PushAnswer(kLlamaJson, open), Paris(0));
  // The marker is missing.
  EXPECT_EQ(PushAnswer(kHermes, absl::StrCat("<tool_call>", kParis, "\n",
                                             Marked(kRome))),
            JoinEvents({Paris(0), Rome(1)}));
  // A brace too many.
  EXPECT_EQ(PushAnswer(kHermes, Marked(kParis + "}")),
            JoinEvents({Paris(0), {ContentEvent("}\n</tool_call>")}}));
}

}  // namespace
}  // namespace baton::router
