// Grammars as they are written and checked.
#include "scheduling/grammar.h"

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace baton::scheduling {
namespace {

using Kind = GrammarExpression::Kind;

GrammarExpression Of(Kind kind, std::vector<uint32_t> parts) {
  GrammarExpression e;
  e.kind = kind;
  e.parts = std::move(parts);
  return e;
}

// A rule that is the last of `expressions`.
std::string WhyNot(std::vector<GrammarExpression> expressions) {
  Grammar grammar;
  grammar.expressions = std::move(expressions);
  grammar.rules = {static_cast<uint32_t>(grammar.expressions.size() - 1)};
  return std::string(Validate(grammar).message());
}

TEST(GrammarTest, WhatABuilderMakesIsValid) {
  GrammarBuilder builder;
  const auto whole = builder.NewRule();
  const auto list = builder.NewRule();
  builder.Define(whole,
                 builder.Sequence({builder.Literal("a"), builder.Call(list)}));
  builder.Define(
      list, builder.Choice({builder.Repeat(builder.ByteRange('b', 'd'), 2, 3),
                            builder.Optional(builder.Call(whole))}));
  Grammar grammar;
  ASSERT_TRUE(builder.Build(&grammar).ok());
  EXPECT_TRUE(Validate(grammar).ok()) << Validate(grammar);
  EXPECT_EQ(grammar.rules.size(), 2u);
}

TEST(GrammarTest, OnePartIsThatPart) {
  GrammarBuilder builder;
  const auto part = builder.Literal("x");
  EXPECT_EQ(builder.Sequence({part}), part);
  EXPECT_EQ(builder.Choice({part}), part);
}

TEST(GrammarTest, SaysWhatIsWrong) {
  EXPECT_EQ(Validate(Grammar()).message(), "there is no rule");
  Grammar no_such_expression;
  no_such_expression.rules = {3};
  EXPECT_EQ(Validate(no_such_expression).message(),
            "rule 0 is expression 3 of 0");
  EXPECT_EQ(WhyNot({Of(Kind::kSequence, {0})}),
            "expression 0 names expression 0, which does not stand before it");
  EXPECT_EQ(WhyNot({Of(Kind::kByte, {})}), "expression 0 has no bytes");
  EXPECT_EQ(WhyNot({Of(Kind::kSequence, {}), Of(Kind::kRepeat, {0, 0})}),
            "expression 1 repeats not one part");
  EXPECT_EQ(WhyNot({Of(Kind::kSequence, {}), Of(Kind::kRepeat, {0})}),
            "expression 1 repeats 0 to 0 times");
  GrammarExpression call = Of(Kind::kRule, {});
  call.rule = 1;
  EXPECT_EQ(WhyNot({call}), "expression 0 names rule 1 of 1");
}

TEST(GrammarTest, IsBounded) {
  std::vector<GrammarExpression> deep = {Of(Kind::kSequence, {})};
  for (uint32_t i = 0; i <= kMaxGrammarDepth; ++i) {
    deep.push_back(Of(Kind::kSequence, {i}));
  }
  EXPECT_EQ(WhyNot(deep), "expression 1001 is nested more than 1000 deep");
  deep.pop_back();
  EXPECT_EQ(WhyNot(deep), "");
  EXPECT_THAT(WhyNot(std::vector<GrammarExpression>(kMaxGrammarExpressions + 1,
                                                    Of(Kind::kSequence, {}))),
              testing::StartsWith("there are 65537 expressions"));
  GrammarExpression half;
  half.literal = std::string(kMaxGrammarBytes / 2 + 1, 'x');
  EXPECT_THAT(WhyNot({half, half}),
              testing::HasSubstr("have more than 1048576 bytes or parts"));
}

TEST(GrammarTest, ABuilderThatIsFullSaysSo) {
  GrammarBuilder builder;
  const auto whole = builder.NewRule();
  for (uint32_t i = 0; i < kMaxGrammarExpressions; ++i) builder.Literal("x");
  EXPECT_FALSE(builder.full());
  builder.Define(whole, builder.Literal("x"));
  EXPECT_TRUE(builder.full());
  Grammar grammar;
  EXPECT_EQ(builder.Build(&grammar).code(),
            absl::StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace baton::scheduling
