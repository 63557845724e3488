// Lengths of what patterns match, against all texts of a few letters.
#include "router/output_format/pattern_length.h"

#include <regex>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "router/output_format/regular_expression.h"
#include "scheduling/grammar_automaton.h"

namespace baton::router::pattern_length_test {
namespace {

using scheduling::Grammar;
using scheduling::GrammarAutomaton;
using scheduling::GrammarBuilder;
using scheduling::kAnyNumber;
using testing::HasSubstr;

absl::StatusOr<Grammar> MakeGrammar(const std::string& pattern,
                                    TextLength length, Match match,
                                    Writing writing = Writing::kPlain) {
  GrammarBuilder builder;
  const GrammarBuilder::Rule rule = builder.NewRule();
  const auto expression =
      WriteRegularExpression(pattern, match, writing, &builder, length);
  if (!expression.ok()) return expression.status();
  builder.Define(rule, *expression);
  Grammar grammar;
  if (absl::Status built = builder.Build(&grammar); !built.ok()) return built;
  return grammar;
}

// All of at most `length` letters.
std::vector<std::string> TextsUpTo(size_t length) {
  std::vector<std::string> texts = {""};
  for (size_t i = 0; i < texts.size(); ++i) {
    const std::string text = texts[i];
    if (text.size() == length) continue;
    for (const char letter : {'a', 'b', '-'}) texts.push_back(text + letter);
  }
  return texts;
}

constexpr size_t kLongest = 6;

// Texts of up to kLongest letters that should match and do not, or the reverse.
int Mistakes(const std::string& pattern, TextLength length,
             const std::vector<std::string>& texts) {
  const auto grammar = MakeGrammar(pattern, length, Match::kAnywhere);
  EXPECT_TRUE(grammar.ok()) << grammar.status();
  const auto automaton = GrammarAutomaton::Make(*grammar);
  const std::regex expected(pattern);
  int matches = 0;
  int mistakes = 0;
  for (const std::string& text : texts) {
    const bool is_match = text.size() >= length.least &&
                          text.size() <= length.most &&
                          std::regex_search(text, expected);
    matches += is_match ? 1 : 0;
    if (!automaton.ok()) continue;
    const auto state = (*automaton)->Next((*automaton)->start(), text);
    const bool allowed =
        state != GrammarAutomaton::kNone && (*automaton)->MayEnd(state);
    if (allowed != is_match) ++mistakes;
  }
  // It has answers where there are some.
  if (!automaton.ok() && matches > 0) return matches;
  return mistakes;
}

TEST(PatternLengthTest, AllShortTexts) {
  const std::vector<std::string> texts = TextsUpTo(kLongest);
  for (const char* pattern : {"a",
                              "^a",
                              "b$",
                              "^$",
                              "",
                              "^a+$",
                              "^[ab]{2,4}$",
                              "^(ab)*$",
                              "^(ab)+-?$",
                              "^[ab]+(-[ab]+)*$",
                              "^(ab|a)*b?$",
                              "(a|bb){2,3}",
                              "^(a*)*$",
                              "^(|a)+b",
                              "^a|b$",
                              "^(a|bb|---)$",
                              "^(a{2}|b)*-(ab?)+$",
                              "a.b|^--",
                              "^((a|b){2})*$",
                              "^a*b*-*$",
                              "^(?:a-?){3}$",
                              "^[^a]*a[^a]*$"}) {
    for (uint32_t least = 0; least <= 5; ++least) {
      for (uint32_t most : {0u, 1u, 2u, 3u, 4u, 5u, kAnyNumber}) {
        EXPECT_EQ(Mistakes(pattern, {least, most}, texts), 0)
            << pattern << " " << least << " to " << most;
      }
    }
  }
}

TEST(PatternLengthTest, CharactersAreCountedNotBytes) {
  const auto grammar = MakeGrammar("^é+-?(ü|\")*$", {3, 4}, Match::kAnywhere,
                                   Writing::kJsonString);
  ASSERT_TRUE(grammar.ok()) << grammar.status();
  EXPECT_TRUE(*Matches(*grammar, "ééé"));
  EXPECT_TRUE(*Matches(*grammar, R"(é-\"\")"));
  EXPECT_TRUE(*Matches(*grammar, "éüüü"));
  EXPECT_FALSE(*Matches(*grammar, "éü"));
  EXPECT_FALSE(*Matches(*grammar, "éü\"\""));
  EXPECT_FALSE(*Matches(*grammar, R"(éé-\"\")"));
}

TEST(PatternLengthTest, LongOnesOfOnePartTakeNoProduct) {
  const auto grammar = MakeGrammar("[a-z0-9_-]{2,}", {5, 9000}, Match::kWhole);
  ASSERT_TRUE(grammar.ok()) << grammar.status();
  EXPECT_LT(grammar->expressions.size(), 10u);
  EXPECT_TRUE(*Matches(*grammar, std::string(5, 'a')));
  EXPECT_FALSE(*Matches(*grammar, std::string(4, 'a')));
}

TEST(PatternLengthTest, WhatIsTooLarge) {
  for (const auto& [pattern, length] :
       std::vector<std::pair<std::string, TextLength>>{
           {"^[ab]+(-[ab]+)*$", {0, 8000}},
           {"^a*(b*a){3000}$", {0, 5000}},
           {"^((((a?){100}){100}){100})b*$", {7, 9}},
           {"^(((((){10000}){10000}){10000})b)*a*$", {7, 9}}}) {
    const auto grammar = MakeGrammar(pattern, length, Match::kWhole);
    EXPECT_EQ(grammar.status().code(), absl::StatusCode::kUnimplemented)
        << pattern;
    EXPECT_THAT(
        grammar.status().message(),
        HasSubstr("has more than 49152 parts where its bounds of length "
                  "are counted"));
  }
}

}  // namespace
}  // namespace baton::router::pattern_length_test
