#include "router/harmony/harmony_stream.h"

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

namespace baton::router::harmony_stream_test {
namespace {

using Kind = AnswerEvent::Kind;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

struct Heard {
  std::vector<AnswerEvent> events;
  bool cut = false;

  friend bool operator==(const Heard&, const Heard&) = default;
};

// Pushes the pieces; events that continue each other are one.
Heard Listen(const std::vector<std::string>& pieces, const std::string& opening,
             const std::vector<std::string>& names) {
  HarmonyStream stream(opening, names);
  Heard heard;
  const auto take = [&](std::vector<AnswerEvent> events) {
    for (AnswerEvent& event : events) {
      EXPECT_FALSE(event.text.empty());
      auto& all = heard.events;
      if (!all.empty() && all.back().kind == event.kind &&
          event.kind != Kind::kCallBegun) {
        all.back().text += event.text;
      } else {
        all.push_back(std::move(event));
      }
    }
  };
  for (const std::string& piece : pieces) take(stream.Push(piece));
  take(stream.Finish());
  heard.cut = stream.cut();
  return heard;
}

// The same however it is cut in two, and into bytes.
Heard Hear(const std::string& text, const std::string& opening = "assistant",
           const std::vector<std::string>& names = {"f", "g"}) {
  const Heard whole = Listen({text}, opening, names);
  std::vector<std::string> bytes;
  for (size_t i = 0; i < text.size(); ++i) {
    bytes.push_back(text.substr(i, 1));
    EXPECT_EQ(Listen({text.substr(0, i), text.substr(i)}, opening, names),
              whole)
        << i;
  }
  EXPECT_EQ(Listen(bytes, opening, names), whole);
  return whole;
}

AnswerEvent Thought(std::string text) {
  return {Kind::kReasoning, 0, std::move(text)};
}
AnswerEvent Content(std::string text) {
  return {Kind::kContent, 0, std::move(text)};
}
AnswerEvent Begun(std::string name, size_t call = 0) {
  return {Kind::kCallBegun, call, std::move(name)};
}
AnswerEvent Arguments(std::string text, size_t call = 0) {
  return {Kind::kArguments, call, std::move(text)};
}

TEST(HarmonyStreamTest, ThoughtsAndTheAnswer) {
  const Heard heard = Hear(
      "<|channel|>analysis<|message|>Hm. 2 < 3 \u20ac<|end|>"
      "<|start|>assistant<|channel|>final<|message|>Yes.\n<|return|>");
  EXPECT_THAT(heard.events,
              ElementsAre(Thought("Hm. 2 < 3 \u20ac"), Content("Yes.\n")));
  EXPECT_FALSE(heard.cut);
  // The token that ends the answer is no text, as a rule.
  EXPECT_THAT(Hear("<|channel|>final<|message|>Yes.").events,
              ElementsAre(Content("Yes.")));
  EXPECT_THAT(
      Hear("<|channel|>final <|constrain|>json<|message|>{\"a\": 1}").events,
      ElementsAre(Content("{\"a\": 1}")));
  EXPECT_THAT(Hear("").events, IsEmpty());
}

TEST(HarmonyStreamTest, MessagesOfOneKindHaveLineBreaksBetweenThem) {
  EXPECT_THAT(
      Hear("<|channel|>analysis<|message|>One.<|end|>"
           "<|start|>assistant<|channel|>analysis<|message|>Two.<|end|>\n"
           "<|start|>assistant<|channel|>commentary<|message|>I look.<|end|>"
           "<|start|>assistant<|channel|>analysis<|message|>Three.<|end|>"
           "<|start|>assistant<|channel|>final<|message|><|end|>"
           "<|start|>assistant<|channel|>final<|message|>Yes.<|return|>")
          .events,
      ElementsAre(Thought("One.\n\nTwo."), Content("I look."),
                  Thought("\n\nThree."), Content("\n\nYes.")));
}

TEST(HarmonyStreamTest, Calls) {
  for (const char* header :
       {"<|channel|>commentary to=functions.f <|constrain|>json<|message|>",
        "<|channel|>commentary to=functions.f<|constrain|>json<|message|>",
        "<|channel|>commentary to=functions.f json<|message|>",
        "<|channel|>commentary to=functions.f<|message|>",
        "<|channel|>commentary to=f<|message|>",
        "<|channel|>analysis to=functions.f code<|message|>",
        " to=functions.f<|channel|>commentary <|constrain|>json<|message|>",
        " to=functions.f<|channel|>commentary<|message|>",
        " to=functions.f <|constrain|>json<|message|>",
        " to=functions.f<|message|>"}) {
    for (const char* end : {"", "<|call|>", "\n<|call|>", "<|end|>"}) {
      const Heard heard =
          Hear(absl::StrCat(header, " {\"a\": \"<|end|>}\"}", end));
      EXPECT_THAT(heard.events,
                  ElementsAre(Begun("f"), Arguments("{\"a\": \"<|end|>}\"}")))
          << header;
      EXPECT_FALSE(heard.cut);
    }
  }
}

TEST(HarmonyStreamTest, CallsBehindOtherMessagesAndBeforeThem) {
  for (const char* end : {"<|call|>", ""}) {
    EXPECT_THAT(
        Hear(absl::StrCat(
                 "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant"
                 "<|channel|>commentary<|message|>I look.<|end|>"
                 "<|start|>assistant to=functions.f<|channel|>commentary"
                 "<|message|>{}",
                 end,
                 "<|start|>assistant<|channel|>commentary to=functions.g"
                 "<|message|>{\"a\":[]}",
                 end,
                 "<|start|>assistant<|channel|>final<|message|>So.<|return|>"))
            .events,
        ElementsAre(Thought("Hm."), Content("I look."), Begun("f"),
                    Arguments("{}"), Begun("g", 1), Arguments("{\"a\":[]}", 1),
                    Content("\n\nSo.")));
  }
}

TEST(HarmonyStreamTest, OtherRecipientsAreThoughts) {
  EXPECT_THAT(Hear("<|channel|>analysis to=python<|message|>1 + 1<|end|>"
                   "<|start|>assistant to=browser.open<|channel|>commentary "
                   "<|constrain|>json<|message|>{}")
                  .events,
              ElementsAre(Thought("1 + 1\n\n{}")));
}

TEST(HarmonyStreamTest, CallsOfOtherToolsAreContentAsTheyAreWritten) {
  const std::string call =
      "<|channel|>commentary to=functions.h <|constrain|>json<|message|>{}";
  EXPECT_THAT(Hear(call).events, ElementsAre(Content(call)));
  EXPECT_THAT(Hear(call, "assistant", {}).events, ElementsAre(Content(call)));
  EXPECT_THAT(
      Hear(absl::StrCat("<|channel|>final<|message|>So.<|end|>"
                        "<|start|>assistant",
                        call))
          .events,
      ElementsAre(Content(absl::StrCat("So.\n\n<|start|>assistant", call))));
  // So is one that is no object, but for none at all.
  const std::string text =
      "<|channel|>commentary to=functions.f<|message|> [1]";
  EXPECT_THAT(Hear(text).events, ElementsAre(Content(text)));
  EXPECT_THAT(Hear("<|channel|>commentary to=functions.f<|message|> <|call|>"
                   "<|start|>assistant<|channel|>final<|message|>So.")
                  .events,
              ElementsAre(Begun("f"), Arguments("{}"), Content("So.")));
}

TEST(HarmonyStreamTest, ArgumentsThatAreCutOffOrBroken) {
  const std::string header = "<|channel|>commentary to=functions.f<|message|>";
  Heard heard = Hear(header + "{\"a\": ");
  EXPECT_THAT(heard.events, ElementsAre(Begun("f"), Arguments("{\"a\": ")));
  EXPECT_TRUE(heard.cut);
  heard = Hear(header);
  EXPECT_THAT(heard.events, ElementsAre(Begun("f")));
  EXPECT_TRUE(heard.cut);
  heard = Hear(header + "{city: 1}");
  EXPECT_THAT(heard.events, ElementsAre(Begun("f"), Arguments("{city: 1}")));
  EXPECT_TRUE(heard.cut);
  // Characters that JSON wants escaped are.
  EXPECT_THAT(Hear(header + "{\"a\": \"x\ny\"}").events,
              ElementsAre(Begun("f"), Arguments("{\"a\": \"x\\u000ay\"}")));
  // What stands behind them is content.
  heard = Hear(header + "{} What now?");
  EXPECT_THAT(heard.events,
              ElementsAre(Begun("f"), Arguments("{}"), Content("What now?")));
  EXPECT_FALSE(heard.cut);
}

TEST(HarmonyStreamTest, TextWithoutAHeaderIsContent) {
  for (const char* text :
       {"Hello.", " Hello.", "assistant", " to=functions.f", " to=f g", "<",
        "<|chan", "<|im_start|>", "a <|end|> b", "<|start|>user<|message|>Hi",
        "<|end|>a", "<|message", "<|start|><|start|>user", "<<|call|>x",
        "\u20ac<|start|>assistants<|channel|>final"}) {
    EXPECT_THAT(Hear(text).events, ElementsAre(Content(text))) << text;
  }
  EXPECT_THAT(
      Hear("Hi<|end|><|start|>assistant<|channel|>final<|message|>Ho").events,
      ElementsAre(Content("Hi\n\nHo")));
  EXPECT_THAT(Hear("<|message|>Hi").events, ElementsAre(Content("Hi")));
  EXPECT_THAT(Hear("<|channel|>other<|message|>Hi").events,
              ElementsAre(Content("Hi")));
}

TEST(HarmonyStreamTest, MarkersInTheWrongPlaceAreTextOfTheirMessage) {
  EXPECT_THAT(
      Hear("<|channel|>analysis<|message|>It says <|end|>, then <|channel|>"
           "final<|message|> or <|start|>user<|message|>.<|end|> <|end|>"
           "<|start|>assistant<|channel|>final<|message|>Yes<|constrain|>")
          .events,
      ElementsAre(Thought("It says <|end|>, then <|channel|>final<|message|> "
                          "or <|start|>user<|message|>.<|end|> "),
                  Content("Yes<|constrain|>")));
}

TEST(HarmonyStreamTest, TheRoleMayBeForgotten) {
  EXPECT_THAT(Hear("<|channel|>analysis<|message|>Hm.<|end|>"
                   "<|channel|>final<|message|>Yes.")
                  .events,
              ElementsAre(Thought("Hm."), Content("Yes.")));
}

TEST(HarmonyStreamTest, AHeaderThatIsCutOffIsLeftOut) {
  for (const char* end :
       {"<|end|>", "<|end|><|start|>", "<|end|>\n<|start|>assis",
        "<|end|><|start|>assistant<|channel|>fin", "<|start|>assistant",
        "<|end|><|start|>assistant<|channel|>final <|constrain|>js"}) {
    EXPECT_THAT(
        Hear(absl::StrCat("<|channel|>analysis<|message|>Hm.", end)).events,
        ElementsAre(Thought("Hm.")))
        << end;
  }
  EXPECT_THAT(Hear("<|channel|>ana").events, IsEmpty());
}

TEST(HarmonyStreamTest, HeadersAreBounded) {
  const std::string most(
      kMaxHarmonyHeader - kHarmonyChannel.size() - kHarmonyMessage.size(), 'c');
  EXPECT_THAT(Listen({absl::StrCat("<|channel|>", most, "<|message|>Hi")},
                     "assistant", {})
                  .events,
              ElementsAre(Content("Hi")));
  const std::string more = absl::StrCat(
      "<|channel|>", std::string(kMaxHarmonyHeader, 'c'), "<|message|>Hi");
  EXPECT_THAT(Listen({more}, "assistant", {}).events,
              ElementsAre(Content(more)));
  HarmonyStream stream("assistant", {});
  EXPECT_FALSE(
      stream.Push("<|channel|>" + std::string(kMaxHarmonyHeader, ' ')).empty());
}

TEST(HarmonyStreamTest, CallsAreBounded) {
  std::string text;
  for (size_t i = 0; i < 130; ++i) {
    absl::StrAppend(&text, i == 0 ? "" : "<|start|>assistant",
                    " to=functions.f<|channel|>commentary<|message|>{}");
  }
  HarmonyStream stream("assistant", {"f"});
  const auto events = stream.Push(text);
  EXPECT_EQ(stream.calls(), 128u);
  ASSERT_EQ(events.size(), 2 * 128u + 1);
  EXPECT_EQ(events.back().kind, Kind::kContent);
}

TEST(HarmonyStreamTest, GoesOnWhereThePromptEnds) {
  const std::string next = "<|start|>assistant<|channel|>final<|message|>Yes.";
  EXPECT_THAT(
      Hear("m.<|end|>" + next, "assistant<|channel|>analysis<|message|>")
          .events,
      ElementsAre(Thought("m."), Content("Yes.")));
  EXPECT_THAT(Hear("Yes.", "assistant<|channel|>final<|message|>").events,
              ElementsAre(Content("Yes.")));
  EXPECT_THAT(Hear("nal<|message|>Yes.", "assistant<|channel|>fi").events,
              ElementsAre(Content("Yes.")));
  EXPECT_THAT(
      Hear("{}", "assistant to=functions.f<|channel|>commentary<|message|>")
          .events,
      ElementsAre(Begun("f"), Arguments("{}")));
  // Nothing is begun.
  EXPECT_THAT(Hear(next, "").events, ElementsAre(Content("Yes.")));
  EXPECT_THAT(Hear("<|end|>" + next, "").events, ElementsAre(Content("Yes.")));
}

TEST(HarmonyStreamTest, SaysWhatCameLast) {
  HarmonyStream stream("assistant", {});
  EXPECT_TRUE(stream.in_header());
  EXPECT_FALSE(stream.thinking());
  stream.Push("<|channel|>analysis");
  EXPECT_TRUE(stream.in_header());
  EXPECT_EQ(stream.thoughts(), 0u);
  stream.Push("<|message|>");
  EXPECT_TRUE(stream.thinking());
  EXPECT_EQ(stream.thoughts(), 1u);
  stream.Push("<|end|>");
  EXPECT_FALSE(stream.thinking());
  EXPECT_FALSE(stream.in_header());
  stream.Push("<|start|>");
  EXPECT_TRUE(stream.in_header());
  EXPECT_FALSE(stream.thinking());
  stream.Push("assistant<|channel|>final<|message|>");
  EXPECT_FALSE(stream.in_header());
  EXPECT_FALSE(stream.thinking());
  EXPECT_TRUE(stream.saying());
}

}  // namespace
}  // namespace baton::router::harmony_stream_test
