#include "router/output_format/characters.h"

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/json.h"
#include "common/utf8.h"
#include "scheduling/grammar.h"
#include "scheduling/grammar_automaton.h"

namespace baton::router {
namespace {

using scheduling::GrammarAutomaton;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

bool IsScalar(char32_t c) {
  return c < 0xD800 || (c > 0xDFFF && c <= CharacterSet::kLast);
}

CharacterSet SetOf(const std::vector<CharacterSet::Range>& ranges) {
  CharacterSet set;
  for (const CharacterSet::Range& range : ranges)
    set.Add(range.first, range.last);
  return set;
}

TEST(CharacterSetTest, RangesAreRisingAndJoined) {
  CharacterSet set;
  EXPECT_TRUE(set.empty());
  set.Add('m', 'p');
  set.Add('a', 'c');
  set.Add('x', 'x');
  EXPECT_THAT(set.ranges(), ElementsAre(CharacterSet::Range{'a', 'c'},
                                        CharacterSet::Range{'m', 'p'},
                                        CharacterSet::Range{'x', 'x'}));
  set.Add('d', 'd');  // touches
  set.Add('l', 'l');
  set.Add('n', 'o');  // is in it already
  EXPECT_THAT(set.ranges(), ElementsAre(CharacterSet::Range{'a', 'd'},
                                        CharacterSet::Range{'l', 'p'},
                                        CharacterSet::Range{'x', 'x'}));
  set.Add('c', 'y');  // swallows
  EXPECT_THAT(set.ranges(), ElementsAre(CharacterSet::Range{'a', 'y'}));
  set.Add(
      SetOf({{0, 0}, {'z', 'z'}, {CharacterSet::kLast, CharacterSet::kLast}}));
  EXPECT_THAT(
      set.ranges(),
      ElementsAre(
          CharacterSet::Range{0, 0}, CharacterSet::Range{'a', 'z'},
          CharacterSet::Range{CharacterSet::kLast, CharacterSet::kLast}));
  EXPECT_FALSE(set.empty());
}

TEST(CharacterSetTest, HasNoSurrogates) {
  EXPECT_THAT(CharacterSet::All().ranges(),
              ElementsAre(CharacterSet::Range{0, 0xD7FF},
                          CharacterSet::Range{0xE000, CharacterSet::kLast}));
  EXPECT_TRUE(SetOf({{0xD800, 0xDFFF}}).empty());
  EXPECT_TRUE(SetOf({{0xDC00, 0xDC00}}).empty());
  EXPECT_THAT(SetOf({{0xD7FE, 0xD900}, {0xDA00, 0xE001}}).ranges(),
              ElementsAre(CharacterSet::Range{0xD7FE, 0xD7FF},
                          CharacterSet::Range{0xE000, 0xE001}));
}

TEST(CharacterSetTest, Complement) {
  EXPECT_EQ(CharacterSet().Complement().ranges(), CharacterSet::All().ranges());
  EXPECT_THAT(CharacterSet::All().Complement().ranges(), IsEmpty());
  const CharacterSet set = SetOf({{0, 9}, {'b', 'd'}, {0xD700, 0xE100}});
  EXPECT_THAT(set.Complement().ranges(),
              ElementsAre(CharacterSet::Range{10, 'a'},
                          CharacterSet::Range{'e', 0xD6FF},
                          CharacterSet::Range{0xE101, CharacterSet::kLast}));
  EXPECT_EQ(set.Complement().Complement().ranges(), set.ranges());
}

TEST(CharacterSetTest, Has) {
  const CharacterSet set = SetOf(
      {{'b', 'd'}, {'f', 'f'}, {CharacterSet::kLast, CharacterSet::kLast}});
  std::string found;
  for (char32_t c = 'a'; c <= 'h'; ++c) {
    if (set.Has(c)) AppendUtf8(c, &found);
  }
  EXPECT_EQ(found, "bcdf");
  EXPECT_TRUE(set.Has(CharacterSet::kLast));
  EXPECT_FALSE(set.Has(CharacterSet::kLast - 1));
  EXPECT_FALSE(CharacterSet().Has('a'));
}

scheduling::Grammar SetGrammar(const CharacterSet& set, Writing writing) {
  scheduling::GrammarBuilder builder;
  builder.Define(builder.NewRule(), WriteCharacter(set, writing, &builder));
  scheduling::Grammar grammar;
  EXPECT_TRUE(builder.Build(&grammar).ok());
  EXPECT_TRUE(scheduling::Validate(grammar).ok());
  return grammar;
}

// How it looks in the answer, by another's hand.
std::string WrittenByAnother(char32_t character, Writing writing) {
  std::string text;
  AppendUtf8(character, &text);
  if (writing == Writing::kPlain) return text;
  const std::string quoted = nlohmann::json(text).dump();
  return quoted.substr(1, quoted.size() - 2);
}

// The number of answers that go on from a state.
int64_t CountAnswers(GrammarAutomaton* automaton, GrammarAutomaton::State state,
                     std::unordered_map<int32_t, int64_t>* known) {
  if (const auto it = known->find(state); it != known->end()) return it->second;
  int64_t count = automaton->MayEnd(state) ? 1 : 0;
  for (int byte = 0; byte < 256; ++byte) {
    const auto next = automaton->Next(state, static_cast<uint8_t>(byte));
    if (next != GrammarAutomaton::kNone) {
      count += CountAnswers(automaton, next, known);
    }
  }
  known->emplace(state, count);
  return count;
}

// Sets whose edges lie where the encoding changes, and within its forms.
std::vector<CharacterSet> InterestingSets() {
  CharacterSet even;  // no two of a kind touch
  for (char32_t c = 0x7F0; c < 0x1100; c += 2) even.Add(c, c);
  CharacterSet sparse;
  for (char32_t c = 3; c <= CharacterSet::kLast; c += 997)
    sparse.Add(c, c + (c % 7));
  return {CharacterSet::All(),
          SetOf({{'a', 'a'}}),
          SetOf({{'\n', '\n'}}),
          SetOf({{0x1B, 0x1B}}),
          SetOf({{'"', '"'}, {'\\', '\\'}}),
          SetOf({{0, 0x1F}}),
          SetOf({{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}}).Complement(),
          SetOf({{'"', '"'}, {0, 0x10}}).Complement(),
          SetOf({{0x7F, 0x80}}),
          SetOf({{0x7FF, 0x800},
                 {0xFFFF, 0x10000},
                 {CharacterSet::kLast, CharacterSet::kLast}}),
          SetOf({{0xE9, 0x1F600}}),
          SetOf({{0xD7FF, 0xE000}}),
          SetOf({{0x4E00, 0x9FFF}, {0x3400, 0x4DBF}, {0x20000, 0x2A6DF}}),
          even,
          even.Complement(),
          sparse,
          sparse.Complement()};
}

void ExpectExactly(const CharacterSet& set, Writing writing) {
  auto made = GrammarAutomaton::Make(SetGrammar(set, writing));
  ASSERT_TRUE(made.ok()) << made.status();
  GrammarAutomaton& automaton = **made;
  int64_t size = 0;
  for (char32_t c = 0; c <= CharacterSet::kLast; ++c) {
    if (!IsScalar(c)) continue;
    std::string text;
    AppendCharacter(c, writing, &text);
    const auto state = automaton.Next(automaton.start(), text);
    const bool matches =
        state != GrammarAutomaton::kNone && automaton.MayEnd(state);
    ASSERT_EQ(matches, set.Has(c)) << static_cast<uint32_t>(c);
    if (set.Has(c)) ++size;
  }
  // And nothing else.
  std::unordered_map<int32_t, int64_t> known;
  EXPECT_EQ(CountAnswers(&automaton, automaton.start(), &known), size);
  EXPECT_FALSE(automaton.exhausted());
}

TEST(WriteCharacterTest, MatchesTheSetExactly) {
  size_t number = 0;
  for (const CharacterSet& set : InterestingSets()) {
    SCOPED_TRACE(number++);
    ExpectExactly(set, Writing::kPlain);
    ExpectExactly(set, Writing::kJsonString);
  }
}

TEST(WriteCharacterTest, AppendsAsJsonWritersDo) {
  for (char32_t c = 0; c <= CharacterSet::kLast; ++c) {
    // Above the first ones, a sample of each form.
    if (!IsScalar(c) || (c > 0x3000 && c % 127 != 0)) continue;
    for (const Writing writing : {Writing::kPlain, Writing::kJsonString}) {
      std::string text = "-";
      AppendCharacter(c, writing, &text);
      ASSERT_EQ(text, "-" + WrittenByAnother(c, writing))
          << static_cast<uint32_t>(c);
    }
  }
}

TEST(WriteCharacterTest, OneCharacterIsOneExpression) {
  EXPECT_EQ(SetGrammar(SetOf({{0x1F600, 0x1F600}}), Writing::kPlain)
                .expressions.size(),
            1u);
  EXPECT_EQ(SetGrammar(SetOf({{'\n', '\n'}}), Writing::kJsonString)
                .expressions.at(0)
                .literal,
            "\\n");
}

TEST(WriteCharacterTest, AnyCharacterIsFewExpressions) {
  EXPECT_LE(SetGrammar(CharacterSet::All(), Writing::kPlain).expressions.size(),
            32u);
  EXPECT_LE(
      SetGrammar(CharacterSet::All(), Writing::kJsonString).expressions.size(),
      48u);
}

TEST(WriteCharacterTest, NoCharacterNeverMatches) {
  for (const Writing writing : {Writing::kPlain, Writing::kJsonString}) {
    const scheduling::Grammar grammar = SetGrammar(CharacterSet(), writing);
    ASSERT_EQ(grammar.expressions.size(), 1u);
    EXPECT_EQ(grammar.expressions[0].kind,
              scheduling::GrammarExpression::Kind::kChoice);
    EXPECT_THAT(grammar.expressions[0].parts, IsEmpty());
  }
}

}  // namespace
}  // namespace baton::router
