// Calls that have a head, the name, before the JSON of their arguments.
#include "router/tool_calls/headed_tool_call.h"

#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "router/tool_calls/tool_call_stream.h"
#include "tests/router/tool_calls/pushed_answer.h"

namespace baton::router::headed_tool_call_test {
namespace {

using enum ToolCallFormat;
using Kind = ToolCallEvent::Kind;
using Events = std::vector<ToolCallEvent>;

constexpr ToolCallFormat kHeaded[] = {kDeepseek, kDeepseekV31, kKimi};

const std::string kCity = R"({"city": "Paris"})";

// One call as each model writes it.
std::string CallOf(ToolCallFormat format, const std::string& name,
                   const std::string& arguments) {
  switch (format) {
    case kDeepseek:
      return absl::StrCat("<｜tool▁call▁begin｜>function<｜tool▁sep｜>", name,
                          "\n```json\n", arguments, "\n```<｜tool▁call▁end｜>");
    case kDeepseekV31:
      return absl::StrCat("<｜tool▁call▁begin｜>", name, "<｜tool▁sep｜>",
                          arguments, "<｜tool▁call▁end｜>");
    default:
      return absl::StrCat("<|tool_call_begin|>functions.", name,
                          ":3<|tool_call_argument_begin|>", arguments,
                          "<|tool_call_end|>");
  }
}

std::string Section(ToolCallFormat format, const std::string& calls) {
  const CallMarkers& markers = HeadedSyntaxOf(format)->markers;
  return absl::StrCat(markers.section_open, calls, markers.section_close);
}

void ExpectContent(ToolCallFormat format, const std::string& text,
                   const std::vector<std::string>& names = {}) {
  EXPECT_EQ(PushAnswer(format, text, names), Events{ContentEvent(text)});
}

TEST(HeadedToolCallTest, CallsAreFound) {
  for (const ToolCallFormat format : kHeaded) {
    const std::string one = CallOf(format, "weather", kCity);
    const std::string two = CallOf(format, "time", "{}");
    const Events paris = CallEvents(0, "weather", kCity);
    const Events both = JoinEvents({paris, CallEvents(1, "time", "{}")});
    EXPECT_EQ(PushAnswer(format, Section(format, one)), paris);
    EXPECT_EQ(PushAnswer(format, Section(format, one), {"weather"}), paris);
    for (const char* between : {"", "\n", " \n "}) {
      EXPECT_EQ(PushAnswer(format, Section(format, one + between + two)), both);
    }
    // Markers around them that are not there, or only in part.
    EXPECT_EQ(PushAnswer(format, one), paris);
    EXPECT_EQ(PushAnswer(format, one + two), both);
    const std::string open(HeadedSyntaxOf(format)->markers.section_open);
    EXPECT_EQ(PushAnswer(format, "\n" + open + "\n" + one + "\n"), paris);
    const std::string whole = Section(format, one);
    EXPECT_EQ(PushAnswer(format, whole.substr(0, whole.size() - 4)), paris);
    // What is said before, and after.
    EXPECT_EQ(PushAnswer(format, "I look.\n\n" + whole + "\n"),
              JoinEvents({{ContentEvent("I look.\n\n")}, paris}));
    EXPECT_EQ(PushAnswer(format, whole + "So."),
              JoinEvents({paris, {ContentEvent("So.")}}));
  }
}

TEST(HeadedToolCallTest, DeepseeksMixTheirWays) {
  for (const ToolCallFormat format : {kDeepseek, kDeepseekV31}) {
    for (const ToolCallFormat way : {kDeepseek, kDeepseekV31}) {
      EXPECT_EQ(PushAnswer(format, Section(way, CallOf(way, "weather", kCity))),
                CallEvents(0, "weather", kCity));
    }
    for (const char* head :
         {"function<｜tool▁sep｜>weather\n", "function<｜tool▁sep｜>weather",
          "function<｜tool▁sep｜>weather\n```\n", " weather <｜tool▁sep｜>\n",
          "function<｜tool▁sep｜>\nweather\n```json"}) {
      for (const char* end : {"", "\n", "```", "\n```\n"}) {
        EXPECT_EQ(
            PushAnswer(format, absl::StrCat("<｜tool▁call▁begin｜>", head,
                                            kCity, end, "<｜tool▁call▁end｜>"))
                .at(0),
            (ToolCallEvent{Kind::kBegun, 0, "weather"}))
            << head;
      }
    }
  }
}

TEST(HeadedToolCallTest, KimisNamesAreNumbered) {
  for (const auto& [head, name] :
       std::vector<std::pair<std::string, std::string>>{
           {"functions.f:0", "f"},
           {"f:12", "f"},
           {"f", "f"},
           {" functions.a.b:1 ", "a.b"},
           {"functions.f:", "f:"},
           {"functions.f:x", "f:x"}}) {
    EXPECT_EQ(PushAnswer(kKimi, absl::StrCat("<|tool_call_begin|>", head,
                                             "<|tool_call_argument_begin|>{}"
                                             "<|tool_call_end|>")),
              CallEvents(0, name, "{}"))
        << head;
  }
}

TEST(HeadedToolCallTest, WhatIsNoCallIsContent) {
  for (const ToolCallFormat format : kHeaded) {
    ExpectContent(format, Section(format, ""));
    ExpectContent(format, Section(format, CallOf(format, "other", kCity)),
                  {"weather"});
    ExpectContent(format, Section(format, CallOf(format, "", kCity)));
    ExpectContent(format, Section(format, CallOf(format, "f", "[1]")));
    ExpectContent(format, Section(format, CallOf(format, "f", "\"a\"")));
    ExpectContent(format,
                  Section(format, CallOf(format, std::string(400, 'f'), "{}")));
    const std::string whole = Section(format, CallOf(format, "f", kCity));
    const size_t begun = whole.find('{');
    for (size_t size = 0; size <= begun; ++size) {
      // Whole characters.
      if ((whole[size] & 0xc0) == 0x80) continue;
      const std::string text = "x" + whole.substr(0, size);
      EXPECT_EQ(PushPieces(format, {}, {text}), Events{ContentEvent(text)});
    }
  }
}

TEST(HeadedToolCallTest, CallsThatAreCutShortAreWhatThereIs) {
  for (const ToolCallFormat format : kHeaded) {
    const std::string whole = Section(format, CallOf(format, "f", kCity));
    const size_t begun = whole.find('{');
    for (size_t size = 1; size <= whole.size() - begun; ++size) {
      if ((whole[begun + size] & 0xc0) == 0x80) continue;
      const Events events =
          PushPieces(format, {}, {whole.substr(0, begun + size)});
      ASSERT_EQ(events.size(), 3u) << size;
      EXPECT_EQ(events[1].text, kCity.substr(0, size));
      EXPECT_EQ(events[2].kind, Kind::kEnded);
    }
    // Arguments that are broken go on up to the call's end.
    EXPECT_EQ(PushAnswer(format, Section(format, CallOf(format, "f",
                                                        R"({"a": x "b"})")))
                  .at(1)
                  .text.substr(0, 12),
              R"({"a": x "b"})");
    // Line breaks in strings.
    EXPECT_EQ(PushAnswer(format, Section(format, CallOf(format, "f",
                                                        "{\"a\": \"\n\"}"))),
              CallEvents(0, "f", R"({"a": "\u000a"})"));
  }
}

TEST(HeadedToolCallTest, CallsComeInPieces) {
  ToolCallStream stream(kDeepseekV31, {"weather"});
  EXPECT_EQ(stream.Push("<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather"),
            Events{});
  EXPECT_EQ(stream.Push("<｜tool▁sep｜>"), Events{});
  EXPECT_EQ(stream.Push("{\"ci"), (Events{{Kind::kBegun, 0, "weather"},
                                          {Kind::kArguments, 0, "{\"ci"}}));
  EXPECT_EQ(stream.Push("ty\": \"Paris\"}"),
            (Events{{Kind::kArguments, 0, "ty\": \"Paris\"}"},
                    {Kind::kEnded, 0, ""}}));
  EXPECT_EQ(stream.Push("<｜tool▁call▁end｜><｜tool▁calls▁end｜>"), Events{});
  EXPECT_EQ(stream.Finish(), Events{});
}

TEST(HeadedToolCallTest, RandomAnswersLoseNothing) {
  const std::vector<std::string> parts = {
      "<｜tool▁calls▁begin｜>",
      "<｜tool▁calls▁end｜>",
      "<｜tool▁call▁begin｜>",
      "<｜tool▁call▁end｜>",
      "<｜tool▁sep｜>",
      "<｜tool▁call",
      "<|tool_calls_section_begin|>",
      "<|tool_calls_section_end|>",
      "<|tool_call_begin|>",
      "<|tool_call_end|>",
      "<|tool_call_argument_begin|>",
      "<|",
      "function",
      "f",
      "functions.g:0",
      "\n",
      " ",
      "```json",
      "```",
      "{}",
      R"({"a": 1})",
      "{",
      "größe 🙂",
      CallOf(kDeepseek, "f", "{}"),
      CallOf(kDeepseekV31, "g", R"({"b": [1]})"),
      CallOf(kKimi, "f", R"({"c": null})")};
  std::mt19937 random(7);
  size_t calls = 0;
  for (int i = 0; i < 20000; ++i) {
    std::string text;
    for (size_t n = random() % 9; n > 0; --n) {
      text += parts[random() % parts.size()];
    }
    const ToolCallFormat format = kHeaded[random() % 3];
    std::vector<std::string> names;
    if (random() % 2 == 0) names = {"f", "g"};
    SCOPED_TRACE(absl::CEscape(text));
    const Events events = PushPieces(format, names, {text});
    std::vector<std::string> pieces;
    for (size_t at = 0; at < text.size();) {
      pieces.push_back(text.substr(at, random() % 10));
      at += pieces.back().size();
    }
    ASSERT_EQ(PushPieces(format, names, pieces), events);
    std::string content;
    size_t found = 0;
    for (const ToolCallEvent& event : events) {
      if (event.kind == Kind::kContent) content += event.text;
      if (event.kind == Kind::kBegun) ++found;
    }
    if (found == 0) {
      ASSERT_EQ(content, text);
    }
    calls += found;
  }
  EXPECT_GT(calls, 2000u);
}

}  // namespace
}  // namespace baton::router::headed_tool_call_test
