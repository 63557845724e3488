// Answers of some format behind what a model thinks.
#include "router/output_format/reasoning_grammar.h"

#include <random>
#include <string>

#include <gtest/gtest.h>

#include "router/output_format/response_grammars.h"
#include "router/reasoning/reasoning_stream.h"
#include "scheduling/grammar_automaton.h"

namespace baton::router::reasoning_grammar_test {
namespace {

v1::ResponseFormat Digits(bool reasoning) {
  v1::ResponseFormat format;
  format.set_regex("[0-9]+");
  format.set_reasoning(reasoning);
  return format;
}

bool Allows(ReasoningStart start, const std::string& text) {
  const auto grammar =
      MakeGrammar(Digits(/*reasoning=*/true), std::nullopt, start);
  EXPECT_TRUE(grammar.ok()) << grammar.status();
  return grammar.ok() && *scheduling::Matches(**grammar, text);
}

TEST(ReasoningGrammarTest, ThoughtsMayComeFirst) {
  for (const char* text :
       {"<think>\nHm.\n</think>\n\n42", "<think></think>42", "42",
        "<think>a < b </ c</think>\n4", "<think><</think>4",
        "<think><</</think>4", "<think><<<//</t</think>4",
        "<think>\u00e4\u20ac\U0001F600</think>4",
        "<think>7</thin\n</think\n</think >\n</think>4"}) {
    EXPECT_TRUE(Allows(ReasoningStart::kPossible, text)) << text;
  }
  for (const char* text :
       {"", "<think>", "<think>42", "<think>Hm.</think>", "<thin>4",
        "<think>a</think>b", "<think>a</think>b</think>4", "Hm.</think>4",
        "\n42", "<think>a</think>\n\n\n4", "<think>a</think> 4",
        "<think>\xff</think>4", "42<think></think>"}) {
    EXPECT_FALSE(Allows(ReasoningStart::kPossible, text)) << text;
  }
}

TEST(ReasoningGrammarTest, ThoughtsThatThePromptBeganHaveToEnd) {
  EXPECT_TRUE(Allows(ReasoningStart::kOpen, "Hm.\n</think>\n\n42"));
  EXPECT_TRUE(Allows(ReasoningStart::kOpen, "<think>Hm.</think>42"));
  EXPECT_TRUE(Allows(ReasoningStart::kOpen, "</think>42"));
  EXPECT_FALSE(Allows(ReasoningStart::kOpen, "42"));
}

TEST(ReasoningGrammarTest, OnlyIfTheFormatAndTheModelHaveThem) {
  const std::string thought = "<think>Hm.</think>42";
  EXPECT_FALSE(Allows(ReasoningStart::kNone, thought));
  const auto unasked = MakeGrammar(Digits(/*reasoning=*/false), std::nullopt,
                                   ReasoningStart::kPossible);
  ASSERT_TRUE(unasked.ok());
  EXPECT_FALSE(*scheduling::Matches(**unasked, thought));
  EXPECT_TRUE(*scheduling::Matches(**unasked, "42"));
}

TEST(ReasoningGrammarTest, FormatsThatCannotBeAreRefusedAllTheSame) {
  v1::ResponseFormat format = Digits(/*reasoning=*/true);
  for (const char* pattern : {"", "(", "[^\\s\\S]"}) {
    format.set_regex(pattern);
    EXPECT_EQ(
        MakeGrammar(format, std::nullopt, ReasoningStart::kOpen).status(),
        MakeGrammar(format, std::nullopt, ReasoningStart::kNone).status());
  }
}

TEST(ReasoningGrammarTest, EachKindIsKeptByItself) {
  ResponseGrammars grammars;
  const auto get = [&](ReasoningStart start) {
    return *grammars.Get(Digits(/*reasoning=*/true), std::nullopt, start);
  };
  const auto none = get(ReasoningStart::kNone);
  const auto open = get(ReasoningStart::kOpen);
  EXPECT_NE(*none, *open);
  EXPECT_EQ(get(ReasoningStart::kNone), none);
  EXPECT_EQ(get(ReasoningStart::kOpen), open);
  EXPECT_NE(*get(ReasoningStart::kPossible), *open);
}

// The grammar allows a text if, and only if, what ReasoningStream takes for its
// answer is allowed (and few line breaks come before it).
TEST(ReasoningGrammarTest, GoesWithTheStream) {
  std::mt19937 random(11);
  const char* const parts[] = {"<think>", "</think>", "<", "/", "think",
                               ">",       "</",       "a", "4"};
  const auto below = [&](size_t n) { return random() % n; };
  int allowed = 0;
  for (int i = 0; i < 3000; ++i) {
    std::string text;
    for (size_t n = below(9); n > 0; --n) text += parts[below(9)];
    if (below(2) == 0) text += "</think>4";
    const ReasoningStart start =
        below(2) == 0 ? ReasoningStart::kOpen : ReasoningStart::kPossible;
    ReasoningStream stream(start);
    std::string answer = stream.Push(text).answer;
    const bool thinking = stream.thinking();
    answer += stream.Finish().answer;
    const bool digits =
        !answer.empty() &&
        answer.find_first_not_of("0123456789") == std::string::npos;
    const bool expected = digits && !thinking;
    ASSERT_EQ(Allows(start, text), expected) << text;
    allowed += expected;
  }
  EXPECT_GT(allowed, 300);
}

}  // namespace
}  // namespace baton::router::reasoning_grammar_test
