#include "scheduling/grammar_automaton.h"

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace baton::scheduling {
namespace {

using Expression = GrammarBuilder::Expression;

// A grammar whose first rule is what `write` says; it may make others.
Grammar Make(const std::function<Expression(GrammarBuilder&)>& write) {
  GrammarBuilder builder;
  const auto whole = builder.NewRule();
  builder.Define(whole, write(builder));
  Grammar grammar;
  EXPECT_TRUE(builder.Build(&grammar).ok());
  return grammar;
}

bool Has(const Grammar& grammar, const std::string& text) {
  const absl::StatusOr<bool> matches = Matches(grammar, text);
  EXPECT_TRUE(matches.ok()) << matches.status();
  return matches.ok() && *matches;
}

TEST(GrammarAutomatonTest, TakesWhatEachKindOfExpressionSays) {
  const Grammar literal = Make([](auto& b) { return b.Literal("ab\xff"); });
  EXPECT_TRUE(Has(literal, "ab\xff"));
  EXPECT_FALSE(Has(literal, "ab"));
  EXPECT_FALSE(Has(literal, "ab\xff!"));
  const Grammar bytes = Make([](auto& b) { return b.ByteRange('b', 'd'); });
  EXPECT_TRUE(Has(bytes, "b"));
  EXPECT_TRUE(Has(bytes, "d"));
  EXPECT_FALSE(Has(bytes, "a"));
  EXPECT_FALSE(Has(bytes, ""));
  const Grammar nothing = Make([](auto& b) { return b.Sequence({}); });
  EXPECT_TRUE(Has(nothing, ""));
  EXPECT_FALSE(Has(nothing, "a"));
  const Grammar choice = Make([](auto& b) {
    return b.Choice({b.Literal("one"), b.Literal("once"), b.Choice({})});
  });
  EXPECT_TRUE(Has(choice, "one"));
  EXPECT_TRUE(Has(choice, "once"));
  EXPECT_FALSE(Has(choice, "onc"));
}

TEST(GrammarAutomatonTest, RepeatsAsOftenAsItMay) {
  for (const uint32_t least : {0u, 1u, 3u}) {
    for (const uint32_t most : {3u, 5u, kAnyNumber}) {
      const Grammar grammar =
          Make([&](auto& b) { return b.Repeat(b.Literal("ab"), least, most); });
      std::string text;
      for (uint32_t n = 0; n < 9; ++n, text += "ab") {
        EXPECT_EQ(Has(grammar, text), least <= n && n <= most)
            << least << ".." << most << " x " << n;
        EXPECT_FALSE(Has(grammar, text + "a"));
      }
    }
  }
}

// What matches nothing may be repeated, in each other, and the walk ends.
TEST(GrammarAutomatonTest, RepeatsOfNothingEnd) {
  const Grammar grammar = Make([](auto& b) {
    const Expression empty = b.Sequence({});
    const Expression inner =
        b.Repeat(b.Choice({empty, b.Literal("x")}), 0, kAnyNumber);
    return b.Repeat(b.Repeat(inner, 2, kAnyNumber), 3, kAnyNumber);
  });
  EXPECT_TRUE(Has(grammar, ""));
  EXPECT_TRUE(Has(grammar, "xxxx"));
  EXPECT_FALSE(Has(grammar, "xy"));
}

// v: '[' v* ']' | 'x'
Grammar Lists() {
  GrammarBuilder b;
  const auto whole = b.NewRule();
  const auto value = b.NewRule();
  b.Define(whole, b.Call(value));
  b.Define(value, b.Choice({b.Sequence({b.Literal("["),
                                        b.Repeat(b.Call(value), 0, kAnyNumber),
                                        b.Literal("]")}),
                            b.Literal("x")}));
  Grammar grammar;
  EXPECT_TRUE(b.Build(&grammar).ok());
  return grammar;
}

TEST(GrammarAutomatonTest, RulesNameEachOther) {
  const Grammar lists = Lists();
  for (const char* text : {"x", "[]", "[x]", "[[][xx[x]]x]"}) {
    EXPECT_TRUE(Has(lists, text)) << text;
  }
  for (const char* text : {"", "[", "]", "xx", "[x]]", "[[x]"}) {
    EXPECT_FALSE(Has(lists, text)) << text;
  }
}

TEST(GrammarAutomatonTest, NestsAsDeepAsItMayAndNoDeeper) {
  auto automaton = GrammarAutomaton::Make(Lists());
  ASSERT_TRUE(automaton.ok()) << automaton.status();
  GrammarAutomaton::State state = (*automaton)->start();
  size_t depth = 0;
  for (;; ++depth) {
    const auto next = (*automaton)->Next(state, '[');
    if (next == GrammarAutomaton::kNone) break;
    state = next;
  }
  EXPECT_FALSE((*automaton)->exhausted());
  EXPECT_GE(depth, GrammarAutomaton::kMaxDepth - 1);
  EXPECT_LE(depth, GrammarAutomaton::kMaxDepth + 1);
  // There is always a way out.
  state = (*automaton)->Next(state, std::string(depth, ']'));
  ASSERT_NE(state, GrammarAutomaton::kNone);
  EXPECT_TRUE((*automaton)->MayEnd(state));
}

// A list that is written as "item, rest" calls itself last, and is not nested.
TEST(GrammarAutomatonTest, ACallThatComesLastIsNotNested) {
  GrammarBuilder b;
  const auto list = b.NewRule();
  b.Define(list, b.Sequence({b.Literal("x"), b.Optional(b.Call(list))}));
  Grammar grammar;
  ASSERT_TRUE(b.Build(&grammar).ok());
  EXPECT_TRUE(Has(grammar, std::string(10 * GrammarAutomaton::kMaxDepth, 'x')));
}

// As "expression: expression '+' term".
TEST(GrammarAutomatonTest, ARuleMayBeginWithItself) {
  GrammarBuilder b;
  const auto sum = b.NewRule();
  b.Define(sum, b.Choice({b.Sequence({b.Call(sum), b.Literal("+x")}),
                          b.Literal("x")}));
  Grammar grammar;
  ASSERT_TRUE(b.Build(&grammar).ok());
  EXPECT_TRUE(Has(grammar, "x+x+x"));
  EXPECT_FALSE(Has(grammar, "x+"));
}

TEST(GrammarAutomatonTest, WhatCannotEndIsLeftOut) {
  GrammarBuilder b;
  const auto whole = b.NewRule();
  const auto endless = b.NewRule();
  b.Define(whole, b.Choice({b.Sequence({b.Literal("a"), b.Call(endless)}),
                            b.Sequence({b.Literal("b"), b.Choice({})}),
                            b.Literal("c")}));
  b.Define(endless, b.Sequence({b.Literal("x"), b.Call(endless)}));
  Grammar grammar;
  ASSERT_TRUE(b.Build(&grammar).ok());
  auto automaton = GrammarAutomaton::Make(grammar);
  ASSERT_TRUE(automaton.ok()) << automaton.status();
  GrammarAutomaton& a = **automaton;
  EXPECT_EQ(a.Next(a.start(), 'a'), GrammarAutomaton::kNone);
  EXPECT_EQ(a.Next(a.start(), 'b'), GrammarAutomaton::kNone);
  const auto end = a.Next(a.start(), 'c');
  ASSERT_NE(end, GrammarAutomaton::kNone);
  EXPECT_TRUE(a.MustEnd(end));
  EXPECT_TRUE(a.MayEnd(end));
  EXPECT_FALSE(a.MustEnd(a.start()));
}

TEST(GrammarAutomatonTest, SaysWhatIsWrong) {
  const auto why = [](const Grammar& grammar) {
    return std::string(GrammarAutomaton::Make(grammar).status().message());
  };
  EXPECT_EQ(why(Make([](auto& b) { return b.Choice({}); })),
            "has no answer that it describes");
  EXPECT_EQ(why(Make([](auto& b) {
              Expression e = b.Literal("x");
              for (int i = 0; i < 8; ++i) e = b.Repeat(e, 10, 10);
              return e;
            })),
            "has more parts, once they are repeated, than the 524288 that it "
            "may have");
  // Nothing, very often.
  EXPECT_EQ(why(Make([](auto& b) {
              Expression e = b.Sequence({});
              for (int i = 0; i < 8; ++i) e = b.Repeat(e, 1000, 1000);
              return e;
            })),
            "has more parts, once they are repeated, than the 524288 that it "
            "may have");
  EXPECT_EQ(why({}), "there is no rule");
}

// (a|b)*a(a|b){n} has 2^n states.
TEST(GrammarAutomatonTest, StatesAreBounded) {
  const Grammar grammar = Make([](auto& b) {
    const Expression ab = b.Choice({b.Literal("a"), b.Literal("b")});
    return b.Sequence(
        {b.Repeat(ab, 0, kAnyNumber), b.Literal("a"), b.Repeat(ab, 40, 40)});
  });
  auto automaton = GrammarAutomaton::Make(grammar);
  ASSERT_TRUE(automaton.ok()) << automaton.status();
  GrammarAutomaton& a = **automaton;
  std::mt19937 random(1);
  GrammarAutomaton::State state = a.start();
  const uint64_t generation = a.generation();
  int taken = 0;
  while (state != GrammarAutomaton::kNone) {
    a.StartWork(SIZE_MAX);
    state = a.Next(state, random() % 2 == 0 ? 'a' : 'b');
    ASSERT_LT(++taken, 1000000);
  }
  EXPECT_TRUE(a.exhausted());
  EXPECT_TRUE(a.crowded());
  a.Forget();
  EXPECT_NE(a.generation(), generation);
  EXPECT_FALSE(a.exhausted());
  EXPECT_FALSE(a.crowded());
  EXPECT_EQ(a.num_states(), 1);
  EXPECT_NE(a.Next(a.start(), std::string(41, 'a')), GrammarAutomaton::kNone);
}

// Random grammars and all short texts, beside a matcher that tries everything.
class Matcher {
 public:
  explicit Matcher(const Grammar* grammar) : grammar_(*grammar) {}

  bool Match(const std::string& text) {
    text_ = text;
    known_.clear();
    return Ends(grammar_.rules[0], 0).contains(text.size());
  }

 private:
  // Where what begins at `from` may end. Rules of these grammars call others
  // behind a letter.
  std::set<size_t> Ends(uint32_t number, size_t from) {
    const auto known = known_.find({number, from});
    if (known != known_.end()) return known->second;
    return known_[{number, from}] = Find(number, from);
  }

  std::set<size_t> Find(uint32_t number, size_t from) {
    const GrammarExpression& e = grammar_.expressions[number];
    using Kind = GrammarExpression::Kind;
    switch (e.kind) {
      case Kind::kLiteral:
        if (text_.compare(from, e.literal.size(), e.literal) != 0) return {};
        return {from + e.literal.size()};
      case Kind::kByte:
        if (from >= text_.size() ||
            !e.bytes.test(static_cast<uint8_t>(text_[from]))) {
          return {};
        }
        return {from + 1};
      case Kind::kSequence: {
        std::set<size_t> ends = {from};
        for (const uint32_t part : e.parts) ends = After(ends, part);
        return ends;
      }
      case Kind::kChoice: {
        std::set<size_t> ends;
        for (const uint32_t part : e.parts) {
          ends.merge(Ends(part, from));
        }
        return ends;
      }
      case Kind::kRepeat: {
        std::set<size_t> ends;
        std::set<size_t> at = {from};
        for (uint32_t n = 0; n <= e.most && n < 12; ++n) {
          if (n >= e.least) ends.insert(at.begin(), at.end());
          at = After(at, e.parts[0]);
        }
        return ends;
      }
      case Kind::kRule:
        return Ends(grammar_.rules[e.rule], from);
    }
    return {};
  }

  std::set<size_t> After(const std::set<size_t>& begins, uint32_t part) {
    std::set<size_t> ends;
    for (const size_t from : begins) ends.merge(Ends(part, from));
    return ends;
  }

  const Grammar& grammar_;
  std::string text_;
  std::map<std::pair<uint32_t, size_t>, std::set<size_t>> known_;
};

Grammar Random(std::mt19937& random) {
  GrammarBuilder b;
  const auto pick = [&](uint32_t n) {
    return static_cast<uint32_t>(random() % n);
  };
  std::vector<GrammarBuilder::Rule> rules;
  for (uint32_t i = 0; i < 1 + pick(3); ++i) rules.push_back(b.NewRule());
  std::vector<Expression> made = {b.Literal("a"), b.Literal("b"),
                                  b.ByteRange('a', 'b'), b.Sequence({})};
  const auto any = [&] {
    return made[pick(static_cast<uint32_t>(made.size()))];
  };
  for (int i = 0; i < 12; ++i) {
    switch (pick(5)) {
      case 0:
        made.push_back(b.Sequence({any(), any()}));
        break;
      case 1:
        made.push_back(b.Choice({any(), any(), any()}));
        break;
      case 2: {
        const uint32_t least = pick(3);
        made.push_back(b.Repeat(
            any(), least, pick(2) == 0 ? kAnyNumber : least + 1 + pick(2)));
        break;
      }
      case 3:
        // Behind a letter, so that it ends.
        made.push_back(b.Sequence(
            {b.Literal("a"),
             b.Call(rules[pick(static_cast<uint32_t>(rules.size()))])}));
        break;
      case 4:
        made.push_back(b.Optional(any()));
        break;
    }
  }
  for (size_t i = 0; i < rules.size(); ++i) {
    b.Define(rules[i], made[made.size() - 1 - i]);
  }
  Grammar grammar;
  EXPECT_TRUE(b.Build(&grammar).ok());
  return grammar;
}

TEST(GrammarAutomatonTest, AgreesWithAMatcherThatTriesEverything) {
  std::vector<std::string> texts = {""};
  for (size_t i = 0; texts[i].size() < 6; ++i) {
    texts.push_back(texts[i] + "a");
    texts.push_back(texts[i] + "b");
  }
  int matched = 0;
  for (uint32_t seed = 0; seed < 300; ++seed) {
    std::mt19937 random(seed);
    const Grammar grammar = Random(random);
    auto automaton = GrammarAutomaton::Make(grammar);
    Matcher matcher(&grammar);
    for (const std::string& text : texts) {
      bool has = false;
      if (automaton.ok()) {
        (*automaton)->StartWork(SIZE_MAX);
        const auto end = (*automaton)->Next((*automaton)->start(), text);
        has = end != GrammarAutomaton::kNone && (*automaton)->MayEnd(end);
      }
      ASSERT_EQ(has, matcher.Match(text)) << "seed " << seed << " " << text;
      matched += has;
    }
  }
  EXPECT_GT(matched, 2000);  // not only grammars that match nothing
}

}  // namespace
}  // namespace baton::scheduling
