#include "router/output_format/regular_expression.h"

#include <iterator>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "absl/strings/str_cat.h"
#include "common/json.h"
#include "scheduling/grammar_automaton.h"

namespace baton::router {
namespace {

using scheduling::GrammarAutomaton;
using ::testing::HasSubstr;

absl::StatusOr<scheduling::Grammar> PatternGrammar(const std::string& pattern,
                                                   Match match,
                                                   Writing writing) {
  scheduling::GrammarBuilder builder;
  const scheduling::GrammarBuilder::Rule rule = builder.NewRule();
  const auto expression =
      WriteRegularExpression(pattern, match, writing, &builder);
  if (!expression.ok()) return expression.status();
  builder.Define(rule, *expression);
  scheduling::Grammar grammar;
  const absl::Status built = builder.Build(&grammar);
  if (!built.ok()) return built;
  EXPECT_TRUE(scheduling::Validate(grammar).ok()) << pattern;
  return grammar;
}

bool FitsPattern(const std::string& pattern, const std::string& text,
                 Match match = Match::kWhole,
                 Writing writing = Writing::kPlain) {
  const auto grammar = PatternGrammar(pattern, match, writing);
  EXPECT_TRUE(grammar.ok()) << pattern << ": " << grammar.status();
  if (!grammar.ok()) return false;
  const auto matches = scheduling::Matches(*grammar, text);
  EXPECT_TRUE(matches.ok()) << pattern << ": " << matches.status();
  return matches.ok() && *matches;
}

bool FindsPattern(const std::string& pattern, const std::string& text) {
  return FitsPattern(pattern, text, Match::kAnywhere);
}

absl::Status PatternError(const std::string& pattern) {
  return PatternGrammar(pattern, Match::kWhole, Writing::kPlain).status();
}

// Whether the pattern is refused as malformed, with this message.
void ExpectMalformedPattern(const std::string& pattern,
                            const std::string& message) {
  const absl::Status status = PatternError(pattern);
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << pattern << ": " << status;
  EXPECT_EQ(status.message(), message) << pattern;
}

void ExpectUnknownPattern(const std::string& pattern, const std::string& what) {
  const absl::Status status = PatternError(pattern);
  EXPECT_TRUE(absl::IsUnimplemented(status)) << pattern << ": " << status;
  EXPECT_EQ(status.message(),
            absl::StrCat("has ", what, ", which Baton does not know"))
      << pattern;
}

TEST(RegularExpressionTest, Literals) {
  EXPECT_TRUE(FitsPattern("abc", "abc"));
  EXPECT_FALSE(FitsPattern("abc", "abcd"));
  EXPECT_FALSE(FitsPattern("abc", "ab"));
  EXPECT_TRUE(FitsPattern("é€😀", "é€😀"));
  EXPECT_TRUE(FitsPattern("", ""));
  EXPECT_FALSE(FitsPattern("", "a"));
  EXPECT_TRUE(FitsPattern("a]}", "a]}"));
}

TEST(RegularExpressionTest, QuantifiersAndWhatOnlyLooksLikeOne) {
  EXPECT_TRUE(FitsPattern("ab*c+d?", "acc"));
  EXPECT_TRUE(FitsPattern("ab*?c+?d??", "abbccd"));
  EXPECT_FALSE(FitsPattern("ab*c+d?", "abbd"));
  EXPECT_TRUE(FitsPattern("a{2}", "aa"));
  EXPECT_FALSE(FitsPattern("a{2}?", "a"));
  EXPECT_TRUE(FitsPattern("(?:ab){1,}", "ababab"));
  EXPECT_FALSE(FitsPattern("a{1,2}", "aaa"));
  EXPECT_TRUE(FitsPattern("a{0}b", "b"));
  EXPECT_FALSE(FitsPattern("a{0,0}b", "ab"));
  EXPECT_TRUE(FitsPattern("é*", "ééé"));
  for (const std::string text : {"a{", "a{}", "a{b}", "a{1,2", "a{1, 2}", "{",
                                 "a{,}", "{x}", "a{1,2,3}", "a{-1}"}) {
    EXPECT_TRUE(FitsPattern(text, text)) << text;
  }
  EXPECT_TRUE(FitsPattern("a{*", "a{{{"));
  EXPECT_TRUE(FitsPattern("a{10000}", std::string(10000, 'a')));
}

TEST(RegularExpressionTest, RepeatsWhatIsEmpty) {
  EXPECT_TRUE(FitsPattern("(?:a?)*", "aaa"));
  EXPECT_TRUE(FitsPattern("(?:a*)*b", "b"));
  EXPECT_TRUE(FitsPattern("(?:|a){3}", "aa"));
  EXPECT_FALSE(FitsPattern("(?:|a){3}", "aaaa"));
  EXPECT_TRUE(FitsPattern("()*", ""));
}

TEST(RegularExpressionTest, Groups) {
  for (const std::string pattern :
       {"(a|bc)+", "(?:a|bc)+", "(?<x1>a|bc)+", "(?P<_y>a|bc)+", "((a)|(bc))+",
        "(?<é>a|bc)+"}) {
    EXPECT_TRUE(FitsPattern(pattern, "abcbca")) << pattern;
    EXPECT_FALSE(FitsPattern(pattern, "abcb")) << pattern;
  }
  EXPECT_TRUE(FitsPattern("a||b", ""));
  EXPECT_TRUE(FitsPattern("x(|y)z", "xz"));
}

TEST(RegularExpressionTest, Dot) {
  EXPECT_TRUE(FitsPattern("...", "a€😀"));
  for (const std::string end : {"\n", "\r", "\u2028", "\u2029"}) {
    EXPECT_FALSE(FitsPattern(".", end));
  }
  EXPECT_TRUE(FitsPattern(".", "\u2027"));
  EXPECT_FALSE(FitsPattern(".", "\xFF"));
  EXPECT_FALSE(FitsPattern(".", "\xED\xA0\x80"));  // a surrogate
}

TEST(RegularExpressionTest, Escapes) {
  EXPECT_TRUE(FitsPattern("\\n\\t\\r\\f\\v", "\n\t\r\f\v"));
  EXPECT_TRUE(FitsPattern("\\0", std::string(1, '\0')));
  EXPECT_TRUE(FitsPattern("\\x41\\u00e9\\u{1F600}\\uD83D\\uDE00\\cJ\\ca",
                          "Aé😀😀\n\x01"));
  EXPECT_TRUE(FitsPattern("\\.\\*\\\\\\/\\-\\ \\\"\\_\\é", ".*\\/- \"_é"));
  EXPECT_TRUE(FitsPattern("\\d+\\D", "123a"));
  EXPECT_FALSE(FitsPattern("\\d", "\u0663"));  // a digit of another script
  EXPECT_TRUE(FitsPattern("\\w+\\W\\w", "aZ_9-x"));
  EXPECT_TRUE(FitsPattern("\\W", "é"));
  EXPECT_TRUE(FitsPattern("\\s+\\S", " \t\u00A0\u3000\uFEFFx"));
  EXPECT_FALSE(FitsPattern("\\S", "\u2003"));
}

TEST(RegularExpressionTest, Classes) {
  EXPECT_TRUE(FitsPattern("[a-c€x]+", "ab€xc"));
  EXPECT_FALSE(FitsPattern("[a-c]", "d"));
  EXPECT_TRUE(FitsPattern("[^a-c]+", "d😀\n"));
  EXPECT_FALSE(FitsPattern("[^a-c]", "b"));
  EXPECT_TRUE(FitsPattern("[-a]+", "a-"));
  EXPECT_TRUE(FitsPattern("[a-]+", "a-"));
  EXPECT_TRUE(FitsPattern("[+--]+", "+,-"));
  EXPECT_TRUE(FitsPattern("[a-c-e]+", "abc-e"));
  EXPECT_FALSE(FitsPattern("[a-c-e]+", "d"));
  EXPECT_TRUE(FitsPattern("[\\w-.]+", "a-.9"));
  EXPECT_TRUE(FitsPattern("[.-\\d]+", ".-9"));
  EXPECT_TRUE(FitsPattern("[\\]\\[\\\\^]+", "][\\^"));
  EXPECT_TRUE(FitsPattern("[[:]+", "[:"));
  EXPECT_TRUE(FitsPattern("[\\b]", "\b"));
  EXPECT_TRUE(FitsPattern("[^\\W_]+", "a9"));
  EXPECT_FALSE(FitsPattern("[^\\W_]", "_"));
  EXPECT_TRUE(FitsPattern("[\\x41-\\u{43}]+", "ABC"));
  EXPECT_TRUE(FitsPattern("[\\uD83D\\uDE00-\\uD83D\\uDE02]", "\U0001F601"));
  EXPECT_TRUE(FitsPattern("[.*+?(){}|$]+", ".*+?(){}|$"));
  EXPECT_TRUE(FitsPattern("a|[^\\s\\S]", "a"));
}

TEST(RegularExpressionTest, AnchorsOfTheWhole) {
  for (const std::string pattern : {"^ab$", "^ab", "ab$", "^^ab$$", "(^ab$)",
                                    "^(ab$)", "^(?:(ab)$)", "x|^ab$"}) {
    EXPECT_TRUE(FitsPattern(pattern, "ab")) << pattern;
    EXPECT_FALSE(FitsPattern(pattern, "cab")) << pattern;
    EXPECT_FALSE(FitsPattern(pattern, "ab\n")) << pattern;
  }
  EXPECT_TRUE(FitsPattern("^$", ""));
  EXPECT_FALSE(FitsPattern("^$", "a"));
}

TEST(RegularExpressionTest, AnchorsOfAnywhere) {
  EXPECT_TRUE(FindsPattern("b", "a\nbc\u2028"));
  EXPECT_FALSE(FindsPattern("b", "ac"));
  EXPECT_TRUE(FindsPattern("^b", "bc"));
  EXPECT_FALSE(FindsPattern("^b", "ab"));
  EXPECT_FALSE(FindsPattern("^b", "a\nb"));
  EXPECT_TRUE(FindsPattern("b$", "ab"));
  EXPECT_FALSE(FindsPattern("b$", "b\n"));
  EXPECT_FALSE(FindsPattern("^b$", "bb"));
  EXPECT_TRUE(FindsPattern("^a|b$|cc", "ax"));
  EXPECT_TRUE(FindsPattern("^a|b$|cc", "xb"));
  EXPECT_TRUE(FindsPattern("^a|b$|cc", "xccx"));
  EXPECT_FALSE(FindsPattern("^a|b$|cc", "xabx"));
  EXPECT_FALSE(FindsPattern("^(a$|b)", "ax"));
  EXPECT_TRUE(FindsPattern("^(a$|b)", "bx"));
  EXPECT_FALSE(FindsPattern("^(a|b)$", "ab"));
  EXPECT_TRUE(FindsPattern("", "abc"));
  EXPECT_TRUE(FindsPattern("$", "abc"));
  EXPECT_FALSE(FindsPattern("b", "b\xFF"));
}

TEST(RegularExpressionTest, WithinJsonStrings) {
  const auto accepts = [](const std::string& pattern, const std::string& text) {
    return FitsPattern(pattern, text, Match::kAnywhere, Writing::kJsonString);
  };
  EXPECT_TRUE(accepts("^a\"b\\\\c\\n$", "a\\\"b\\\\c\\n"));
  EXPECT_FALSE(accepts("^a\"$", "a\""));
  EXPECT_FALSE(accepts("^\\n$", "\n"));
  EXPECT_FALSE(accepts("^\\n$", "\\u000a"));
  EXPECT_TRUE(accepts("^\\x1f\\x7f$", "\\u001f\x7f"));
  EXPECT_TRUE(accepts("b", "\\\"\\u0001\\tbé\\n"));
  // The n of an escape is no n.
  EXPECT_FALSE(accepts("n", "\\n"));
  EXPECT_TRUE(accepts("^n*$", "nn"));
  EXPECT_TRUE(accepts("^.*$", "\\\"\\t😀\\\\"));
  EXPECT_FALSE(accepts("^.*$", "\\n"));
  EXPECT_TRUE(accepts("^[^a]{2}$", "\\n\\u0000"));
}

TEST(RegularExpressionTest, MalformedOnes) {
  ExpectMalformedPattern("ab(c", "has an unclosed group at byte 2");
  ExpectMalformedPattern("(a(b)", "has an unclosed group at byte 0");
  ExpectMalformedPattern("ab)", "has a ) without a ( at byte 2");
  ExpectMalformedPattern("é[a-", "has an unclosed class at byte 2");
  ExpectMalformedPattern("[^a", "has an unclosed class at byte 0");
  ExpectMalformedPattern("a[z-a]", "has a range out of order at byte 2");
  for (const std::string pattern :
       {"*a", "+", "?", "{2}", "(*a)", "a|*", "^*", "$+", "(?:?)"}) {
    EXPECT_THAT(PatternError(pattern).message(),
                HasSubstr("has a quantifier with nothing to repeat at byte"))
        << pattern;
  }
  for (const std::string pattern :
       {"a**", "a++", "a?+", "a*+", "a{2}{3}", "a{1,2}+", "a+??", "a*?*"}) {
    EXPECT_THAT(PatternError(pattern).message(),
                HasSubstr("has a quantifier behind a quantifier at byte"))
        << pattern;
  }
  ExpectMalformedPattern(
      "ab{3,2}", "has a repetition with its bounds out of order at byte 2");
  for (const std::string pattern :
       {"a{10001}", "a{0,10001}", "a{99999999999999999999,}"}) {
    ExpectMalformedPattern(pattern,
                           "has a repetition of more than 10000 at byte 1");
  }
  for (const std::string pattern : {"(?<>a)", "(?<1>a)", "(?<a", "(?<a-b>c)"}) {
    ExpectMalformedPattern(pattern, "has a group with a bad name at byte 0");
  }
  ExpectMalformedPattern("a\\", "has a \\ with nothing behind it at byte 1");
  ExpectMalformedPattern("a\xFF", "has what is not UTF-8 at byte 1");
}

TEST(RegularExpressionTest, MalformedEscapes) {
  for (const std::string pattern : {"\\x", "\\x4", "\\x4g", "\\x{41}"}) {
    ExpectMalformedPattern(pattern, "has a malformed \\x at byte 0");
  }
  for (const std::string pattern :
       {"\\u123", "\\u{}", "\\u{110000}", "\\u{41", "\\u{D800}", "\\uD83D",
        "\\uD83D\\u0041", "\\uDE00", "\\u{fffffffffff}"}) {
    ExpectMalformedPattern(pattern, "has a malformed \\u at byte 0");
    ExpectMalformedPattern("[" + pattern + "]",
                           "has a malformed \\u at byte 1");
  }
  ExpectMalformedPattern("\\c1", "has a malformed \\c at byte 0");
}

TEST(RegularExpressionTest, UnknownOnes) {
  ExpectUnknownPattern("a(?=b)", "a look-ahead at byte 1");
  ExpectUnknownPattern("(?!b)", "a look-ahead at byte 0");
  ExpectUnknownPattern("(?<=b)", "a look-behind at byte 0");
  ExpectUnknownPattern("(?<!b)", "a look-behind at byte 0");
  ExpectUnknownPattern("(?>b)", "an atomic group at byte 0");
  ExpectUnknownPattern("(?i)a", "flags at byte 0");
  ExpectUnknownPattern("(?-s:a)", "flags at byte 0");
  ExpectUnknownPattern("(?#a)", "a group of another kind at byte 0");
  ExpectUnknownPattern("(a)\\1", "a back reference at byte 3");
  ExpectUnknownPattern("(?<a>b)\\k<a>", "a back reference at byte 7");
  ExpectUnknownPattern("(?P=a)", "a back reference at byte 0");
  ExpectUnknownPattern("\\01", "an octal escape at byte 0");
  ExpectUnknownPattern("[\\1]", "an octal escape at byte 1");
  ExpectUnknownPattern("a\\b", "a word boundary at byte 1");
  ExpectUnknownPattern("[\\B]", "a word boundary at byte 1");
  ExpectUnknownPattern("\\p{L}", "a Unicode property at byte 0");
  ExpectUnknownPattern("[\\P{L}]", "a Unicode property at byte 1");
  ExpectUnknownPattern("\\A", "a \\A at byte 0");
  ExpectUnknownPattern("\\a", "a \\a at byte 0");
  ExpectUnknownPattern("[]a]", "a class that begins with ] at byte 0");
  ExpectUnknownPattern("x[^]", "a class that begins with ] at byte 1");
  ExpectUnknownPattern("[[:alpha:]_]", "a POSIX class at byte 1");
  ExpectUnknownPattern("[a&&b]", "an intersection of classes at byte 2");
  ExpectUnknownPattern("a{,3}", "a repetition without a lower bound at byte 1");
  ExpectUnknownPattern("a^b", "a ^ that is not at the beginning at byte 1");
  ExpectUnknownPattern("(^a|b)c", "a ^ that is not at the beginning at byte 1");
  ExpectUnknownPattern("a(b$)*", "a $ that is not at the end at byte 3");
}

TEST(RegularExpressionTest, HasBounds) {
  const auto nested = [](size_t depth) {
    return std::string(depth, '(') + "a" + std::string(depth, ')');
  };
  EXPECT_TRUE(FitsPattern(nested(200), "a"));
  ExpectMalformedPattern(nested(201),
                         "has groups more than 200 deep at byte 200");
  EXPECT_TRUE(PatternError(std::string(16384, 'a')).ok());
  ExpectMalformedPattern(
      std::string(16385, 'a'),
      "has 16385 bytes, and a regular expression may have 16384");
}

TEST(RegularExpressionTest, MakesFewExpressions) {
  EXPECT_EQ(PatternGrammar("hello", Match::kWhole, Writing::kJsonString)
                ->expressions.size(),
            1u);
  // What is known already is not written again.
  std::string pattern;
  for (int i = 0; i < 1000; ++i) pattern += ".\\S";
  EXPECT_LE(PatternGrammar(pattern, Match::kAnywhere, Writing::kJsonString)
                ->expressions.size(),
            200u);
}

// Writes small patterns over {a, b, c}.
class PatternGenerator final {
 public:
  explicit PatternGenerator(uint32_t seed) : random_(seed) {}

  size_t Below(size_t bound) { return random_() % bound; }

  std::string Choice(int depth) {
    std::string pattern = Sequence(depth);
    while (Below(3) == 0) absl::StrAppend(&pattern, "|", Sequence(depth));
    return pattern;
  }

  // With ^ and $ here and there.
  std::string AnchoredChoice() {
    std::string pattern;
    do {
      absl::StrAppend(&pattern, pattern.empty() ? "" : "|",
                      Below(2) == 0 ? "^" : "", Sequence(2),
                      Below(2) == 0 ? "$" : "");
    } while (Below(3) == 0);
    return pattern;
  }

  std::string Text() {
    std::string text;
    for (size_t left = Below(9); left > 0; --left) text += "abc\n"[Below(4)];
    return text;
  }

 private:
  std::string Sequence(int depth) {
    constexpr const char* kQuantifiers[] = {"*",    "+",     "?",    "{2}",
                                            "{1,}", "{0,2}", "*?",   "+?",
                                            "??",   "{0}",   "{2,3}"};
    std::string pattern;
    for (size_t left = Below(4); left > 0; --left) {
      pattern += Atom(depth);
      if (Below(3) == 0) pattern += kQuantifiers[Below(11)];
    }
    return pattern;
  }

  std::string Atom(int depth) {
    constexpr const char* kAtoms[] = {"a",     "b",   "c",    ".",   "[ab]",
                                      "[^a]",  "\\s", "\\w",  "\\D", "[^\\sb]",
                                      "[a-c]", "\\n", "\\x61"};
    if (depth > 0 && Below(3) == 0) {
      return absl::StrCat(Below(2) == 0 ? "(" : "(?:", Choice(depth - 1), ")");
    }
    return kAtoms[Below(13)];
  }

  std::mt19937 random_;
};

// PCRE2's word on whether the pattern matches; nothing where it gave up.
std::optional<bool> Pcre2Matches(const std::string& pattern,
                                 const std::string& text, Match match) {
  uint32_t options = PCRE2_UTF | PCRE2_DOLLAR_ENDONLY;
  if (match == Match::kWhole) options |= PCRE2_ANCHORED | PCRE2_ENDANCHORED;
  int error = 0;
  PCRE2_SIZE offset = 0;
  pcre2_code* code =
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()),
                    pattern.size(), options, &error, &offset, nullptr);
  if (code == nullptr) return std::nullopt;
  pcre2_match_data* data = pcre2_match_data_create_from_pattern(code, nullptr);
  pcre2_match_context* limits = pcre2_match_context_create(nullptr);
  pcre2_set_match_limit(limits, 1'000'000);
  const int result =
      pcre2_match(code, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(),
                  0, 0, data, limits);
  pcre2_match_context_free(limits);
  pcre2_match_data_free(data);
  pcre2_code_free(code);
  if (result < 0 && result != PCRE2_ERROR_NOMATCH) return std::nullopt;
  return result >= 0;
}

std::string WithinQuotes(const std::string& text) {
  const std::string quoted = nlohmann::json(text).dump();
  return quoted.substr(1, quoted.size() - 2);
}

bool AutomatonFits(GrammarAutomaton* automaton, const std::string& text) {
  const auto state = automaton->Next(automaton->start(), text);
  return state != GrammarAutomaton::kNone && automaton->MayEnd(state);
}

// Compares with PCRE2 on texts that match and that do not.
void ExpectAsPcre2(const std::string& pattern, Match match,
                   PatternGenerator* generator, int* matching, int* others) {
  const auto plain = PatternGrammar(pattern, match, Writing::kPlain);
  const auto json = PatternGrammar(pattern, match, Writing::kJsonString);
  ASSERT_TRUE(plain.ok() && json.ok()) << pattern << ": " << plain.status();
  auto of_text = GrammarAutomaton::Make(*plain);
  auto of_json = GrammarAutomaton::Make(*json);
  ASSERT_TRUE(of_text.ok() && of_json.ok()) << pattern << of_text.status();
  for (int i = 0; i < 60; ++i) {
    const std::string text = generator->Text();
    const std::optional<bool> expected = Pcre2Matches(pattern, text, match);
    if (!expected.has_value()) continue;
    ASSERT_EQ(AutomatonFits(of_text->get(), text), *expected)
        << pattern << " on \"" << WithinQuotes(text) << "\"";
    ASSERT_EQ(AutomatonFits(of_json->get(), WithinQuotes(text)), *expected)
        << pattern << " on \"" << WithinQuotes(text) << "\" in JSON";
    ++(*expected ? *matching : *others);
  }
}

TEST(RegularExpressionTest, MatchesWhatPcre2Matches) {
  PatternGenerator generator(/*seed=*/20240607);
  int matching = 0;
  int others = 0;
  for (int i = 0; i < 500 && !testing::Test::HasFailure(); ++i) {
    ExpectAsPcre2(generator.Choice(/*depth=*/3), Match::kWhole, &generator,
                  &matching, &others);
    ExpectAsPcre2(generator.AnchoredChoice(), Match::kAnywhere, &generator,
                  &matching, &others);
  }
  RecordProperty("matching", matching);
  RecordProperty("others", others);
  EXPECT_GT(matching, 1000);
  EXPECT_GT(others, 10000);
}

// Whatever comes: an answer, and a grammar that is one.
TEST(RegularExpressionTest, TakesAnyBytes) {
  constexpr absl::string_view kPieces[] = {
      "a", "(", ")", "[", "]",   "{",     "}", "1",       ",",   "-",
      "^", "$", "|", "*", "+",   "?",     ".", "\\",      "x4",  "u{",
      "d", "W", "é", ":", "(?:", "(?<n>", "0", "\\uD83D", "\xFF"};
  std::mt19937 random(/*seed=*/7);
  int taken = 0;
  for (int i = 0; i < 20000; ++i) {
    std::string pattern;
    for (size_t left = random() % 12; left > 0; --left) {
      absl::StrAppend(&pattern, kPieces[random() % std::size(kPieces)]);
    }
    for (const Match match : {Match::kWhole, Match::kAnywhere}) {
      const auto grammar = PatternGrammar(pattern, match, Writing::kJsonString);
      if (grammar.ok()) {
        ++taken;
      } else {
        EXPECT_TRUE(absl::IsInvalidArgument(grammar.status()) ||
                    absl::IsUnimplemented(grammar.status()))
            << grammar.status();
        EXPECT_THAT(std::string(grammar.status().message()),
                    HasSubstr(" at byte "));
      }
    }
  }
  EXPECT_GT(taken, 1000);
}

}  // namespace
}  // namespace baton::router
