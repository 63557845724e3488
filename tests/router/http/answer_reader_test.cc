#include "router/http/answer_reader.h"

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace baton::router::http::answer_reader_test {
namespace {

using Kind = AnswerEvent::Kind;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

v1::GenerateResponse Said(
    const std::string& text, int tokens = 1,
    v1::FinishReason finish = v1::FINISH_REASON_UNSPECIFIED) {
  v1::GenerateResponse response;
  response.set_text(text);
  for (int i = 0; i < tokens; ++i) response.add_token_ids(7);
  response.set_finish_reason(finish);
  return response;
}

v1::GenerateResponse End(const std::string& text = "") {
  return Said(text, /*tokens=*/0, v1::FINISH_REASON_STOP);
}

TEST(AnswerReaderTest, ThoughtsThenContentThenCalls) {
  AnswerReader reader(ReasoningStart::kPossible, ToolCallFormat::kHermes,
                      {"add"});
  EXPECT_THAT(reader.Read(Said("<think>")), IsEmpty());
  EXPECT_THAT(reader.Read(Said("Hm.")),
              ElementsAre(AnswerEvent{Kind::kReasoning, 0, "Hm."}));
  EXPECT_THAT(reader.Read(Said("</think>\n\nSo")),
              ElementsAre(AnswerEvent{Kind::kContent, 0, "So"}));
  EXPECT_THAT(
      reader.Read(Said("<tool_call>{\"name\": \"add\", \"arguments\": {")),
      ElementsAre(AnswerEvent{Kind::kCallBegun, 0, "add"},
                  AnswerEvent{Kind::kArguments, 0, "{"}));
  EXPECT_THAT(reader.Read(Said("}}</tool_call>")),
              ElementsAre(AnswerEvent{Kind::kArguments, 0, "}"}));
  EXPECT_THAT(reader.Read(End()), IsEmpty());
  EXPECT_EQ(reader.calls(), 1u);
  EXPECT_FALSE(reader.cut());
}

TEST(AnswerReaderTest, ACallThatIsCutOff) {
  AnswerReader reader(ReasoningStart::kNone, ToolCallFormat::kHermes, {"add"});
  reader.Read(Said("<tool_call>{\"name\": \"add\", \"arguments\": {"));
  EXPECT_FALSE(reader.cut());
  reader.Read(End());
  EXPECT_TRUE(reader.cut());
  EXPECT_EQ(reader.calls(), 1u);
}

TEST(AnswerReaderTest, TheEndHasWhatWasHeld) {
  AnswerReader reader(ReasoningStart::kOpen, std::nullopt, {});
  EXPECT_THAT(reader.Read(Said("a</thi")),
              ElementsAre(AnswerEvent{Kind::kReasoning, 0, "a"}));
  EXPECT_THAT(reader.Read(End("n")),
              ElementsAre(AnswerEvent{Kind::kReasoning, 0, "</thin"}));

  AnswerReader other(ReasoningStart::kPossible, std::nullopt, {});
  EXPECT_THAT(other.Read(Said("<thi")), IsEmpty());
  EXPECT_THAT(other.Read(End()),
              ElementsAre(AnswerEvent{Kind::kContent, 0, "<thi"}));
}

TEST(AnswerReaderTest, MessagesOfHarmony) {
  AnswerReader reader("assistant", {"add"});
  EXPECT_THAT(reader.Read(Said("<|channel|>")), IsEmpty());
  EXPECT_THAT(reader.Read(Said("analysis")), IsEmpty());
  EXPECT_EQ(reader.reasoning_tokens(), 0);
  EXPECT_THAT(reader.Read(Said("<|message|>")), IsEmpty());
  EXPECT_EQ(reader.reasoning_tokens(), 3);
  EXPECT_THAT(reader.Read(Said("Hm.")),
              ElementsAre(AnswerEvent{Kind::kReasoning, 0, "Hm."}));
  EXPECT_THAT(reader.Read(Said("<|end|>")), IsEmpty());
  EXPECT_THAT(reader.Read(Said("<|start|>")), IsEmpty());
  EXPECT_EQ(reader.reasoning_tokens(), 5);
  EXPECT_THAT(reader.Read(Said("assistant to=functions.add<|channel|>"
                               "commentary<|message|>{")),
              ElementsAre(AnswerEvent{Kind::kCallBegun, 0, "add"},
                          AnswerEvent{Kind::kArguments, 0, "{"}));
  EXPECT_THAT(reader.Read(Said("}")),
              ElementsAre(AnswerEvent{Kind::kArguments, 0, "}"}));
  EXPECT_THAT(reader.Read(End()), IsEmpty());
  EXPECT_EQ(reader.calls(), 1u);
  EXPECT_FALSE(reader.cut());
  EXPECT_EQ(reader.reasoning_tokens(), 5);

  AnswerReader cut("assistant", {"add"});
  cut.Read(Said("<|channel|>commentary to=functions.add<|message|>{\"a"));
  EXPECT_THAT(cut.Read(End()), IsEmpty());
  EXPECT_TRUE(cut.cut());
  // Where the prompt has begun it.
  AnswerReader thinking("assistant<|channel|>analysis<|message|>", {});
  thinking.Read(Said("Hm.", 2));
  thinking.Read(Said("<|end|>"));
  thinking.Read(Said("<|start|>assistant<|channel|>final<|message|>Yes.", 6));
  EXPECT_EQ(thinking.reasoning_tokens(), 3);
}

TEST(AnswerReaderTest, CountsTokensOfThoughts) {
  const auto tokens = [](ReasoningStart start,
                         const std::vector<std::string>& texts) {
    AnswerReader reader(start, std::nullopt, {});
    for (const std::string& text : texts) reader.Read(Said(text));
    reader.Read(End());
    return reader.reasoning_tokens();
  };
  constexpr auto kPossible = ReasoningStart::kPossible;
  EXPECT_EQ(tokens(kPossible, {"<think>", "a", "</think>", "b", "c"}), 3);
  // Markers of several tokens.
  EXPECT_EQ(tokens(kPossible, {"<", "think", ">", "a", "</", "think>", "b"}),
            6);
  EXPECT_EQ(tokens(kPossible, {"<", "thin", "g", "a"}), 0);
  EXPECT_EQ(tokens(kPossible, {"<think>a</think>", "b"}), 1);
  EXPECT_EQ(tokens(kPossible, {"<think>", "a"}), 2);
  EXPECT_EQ(tokens(ReasoningStart::kOpen, {"a", "b", "</think>", "c"}), 3);
  EXPECT_EQ(tokens(ReasoningStart::kOpen, {"<", "th"}), 2);
  EXPECT_EQ(tokens(ReasoningStart::kNone, {"<think>", "a", "</think>"}), 0);
}

}  // namespace
}  // namespace baton::router::http::answer_reader_test
