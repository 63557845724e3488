#include "router/text/regex.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "router/text/regex_translation.h"

namespace baton::router::regex_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

// What the pattern finds in the text.
std::vector<std::string> Found(const std::string& pattern,
                               const std::string& text) {
  const absl::StatusOr<Regex> regex = Regex::Compile(pattern);
  EXPECT_TRUE(regex.ok()) << regex.status();
  std::vector<std::string> found;
  if (!regex.ok()) return found;
  std::vector<MatchSpan> spans;
  EXPECT_TRUE(regex->FindAll(text, &spans).ok());
  size_t covered = 0;
  for (const MatchSpan& span : spans) {
    EXPECT_EQ(span.begin, covered);
    covered = span.end;
    if (span.is_match) {
      found.push_back(text.substr(span.begin, span.end - span.begin));
    }
  }
  EXPECT_EQ(covered, text.size());
  return found;
}

TEST(RegexTest, ClassesAreUnicodeProperties) {
  // U+180E is no white space, U+0085 and U+3000 are.
  EXPECT_THAT(Found("\\s+", "a\xE1\xA0\x8E\xC2\x85\xE3\x80\x80"),
              ElementsAre("\xC2\x85\xE3\x80\x80"));
  // Marks and connectors are part of words.
  EXPECT_THAT(Found("\\w+", "e\xCC\x81_\xE2\x80\xBF!"),
              ElementsAre("e\xCC\x81_\xE2\x80\xBF"));
  EXPECT_THAT(Found("\\h+", "xyzBEEF 1 g"), ElementsAre("BEEF", "1"));
  EXPECT_THAT(Found("[\\h]+", "xyzBEEF 1 g"), ElementsAre("BEEF", "1"));
  EXPECT_THAT(Found("a\\vb",
                    "a\x0B"
                    "b a\nb"),
              ElementsAre("a\x0B"
                          "b"));
}

TEST(RegexTest, OptionsMeanWhatOnigurumaMeans) {
  EXPECT_THAT(Found("(?m:a.)", "a\nab"), ElementsAre("a\n", "ab"));
  EXPECT_THAT(Found("a.", "a\nab"), ElementsAre("ab"));
  EXPECT_THAT(Found("^.|.$", "ab\ncd"), ElementsAre("a", "b", "c", "d"));
  // An option in the middle takes the alternatives behind it along.
  EXPECT_THAT(Found("a(?i)b|c", "aB aC c b"), ElementsAre("aB", "aC"));
}

TEST(RegexTest, IntervalsAreNotPossessive) {
  EXPECT_THAT(Found("x{1,2}+x", "xxxxx"), ElementsAre("xxxxx"));
  EXPECT_THAT(Found("(?:ab|c){,2}d", "ababd d"), ElementsAre("ababd", "d"));
  EXPECT_THAT(Found("x{2}?y", "xxy y"), ElementsAre("xxy", "y"));
  EXPECT_THAT(Found("x++x", "xxx"), IsEmpty());
  EXPECT_THAT(Found("a{b}", "a{b}"), ElementsAre("a{b}"));
}

TEST(RegexTest, ScriptsAreNotExtensions) {
  // U+3001 is common to Han and others, but not of the script Han.
  EXPECT_THAT(Found("\\p{Han}+", "\xE6\xBC\xA2\xE3\x80\x81"),
              ElementsAre("\xE6\xBC\xA2"));
  EXPECT_THAT(Found("\\P{Han}+|\\p{^Han}", "a\xE6\xBC\xA2"), ElementsAre("a"));
}

// U+10D40 (a digit) and U+2EBF0 (Han) came with Unicode 16 and 15.1.
TEST(RegexTest, KnowsNewCharacters) {
  const std::string digit = "\xF0\x90\xB5\x80";
  const std::string han = "\xF0\xAE\xAF\xB0";
  EXPECT_THAT(Found("\\p{Nd}", "a" + digit + digit + "b"),
              ElementsAre(digit, digit));
  EXPECT_THAT(Found("\\p{Han}+", "a" + han + digit), ElementsAre(han));
  EXPECT_THAT(Found("[^\\s\\p{L}\\p{N}]+", "a" + han + digit + "!"),
              ElementsAre("!"));
}

TEST(RegexTest, SetsInSetsAreUnions) {
  EXPECT_THAT(Found("[^a[bc]]+", "abcd"), ElementsAre("d"));
}

TEST(RegexTest, EmptyMatchesEnd) {
  EXPECT_THAT(Found("x*", "axb"), ElementsAre("", "x", ""));
}

// Of quantified sets, too, one within the other, and beside others.
TEST(RegexTest, SetsThatAreJoinedByAnd) {
  EXPECT_THAT(Found("[a-z&&[^aeiou]]+", "streaming"),
              ElementsAre("str", "m", "ng"));
  EXPECT_THAT(Found("[\\p{Lo}&&[^\\p{Han}]]+x?", "漢かなx字"),
              ElementsAre("かなx"));
  EXPECT_THAT(Found("[a-z&&[a-m]&&[^c]]{2}", "abcdez"),
              ElementsAre("ab", "de"));
  EXPECT_THAT(Found("[a-z&&[a-m&&[^c]]]{1,2}+", "abcde"),
              ElementsAre("ab", "de"));
  EXPECT_THAT(Found("(?i:[a-z&&[^b]])", "aBcB"), ElementsAre("a", "c"));
  EXPECT_THAT(Found("[ab&&[\\]b]]", "ab]"), ElementsAre("b"));
}

// As one set.
TEST(RegexTest, CategoriesWithoutASet) {
  EXPECT_EQ(*TranslateOniguruma(
                "[\\p{L}\\p{M}\\p{N}\\p{P}\\p{Z}\\p{C}&&[^\\p{Han}+]]"),
            "[^\\p{Sc}\\p{Sk}\\p{Sm}\\p{So}\\p{sc:Han}+]");
  EXPECT_THAT(Found("[\\p{Lu}\\p{Lo}&&[^\\p{Han}]]+", "AÉб漢かaא々"),
              ElementsAre("AÉ", "か", "א"));
  // What is more than that has to be looked at twice.
  EXPECT_THAT(*TranslateOniguruma("[\\p{Lu}x&&[^a]]"), HasSubstr("(?="));
  EXPECT_THAT(*TranslateOniguruma("[\\p{Lu}&&[a]]"), HasSubstr("(?="));
  EXPECT_THAT(*TranslateOniguruma("[\\p{Alphabetic}&&[^a]]"), HasSubstr("(?="));
  EXPECT_THAT(*TranslateOniguruma("[\\P{Lu}&&[^a]]"), HasSubstr("(?="));
  // Or where case does not count.
  EXPECT_THAT(*TranslateOniguruma("x(?i)(y[\\p{Lu}&&[^a]])"), HasSubstr("(?="));
  EXPECT_THAT(*TranslateOniguruma("(?i:x(?-i:y[\\p{Lu}&&[^a]]))"),
              Not(HasSubstr("(?=")));
  EXPECT_THAT(*TranslateOniguruma("(?i:x)[\\p{Lu}&&[^a]]"),
              Not(HasSubstr("(?=")));
}

TEST(RegexTest, RefusesWhatItCannotTranslate) {
  for (const char* const pattern :
       {"[a&&b]", "[a[^b]]", "[^a&&[b]]", "[a[b&&[c]]]", "[a&&[b]c]", "[&&[a]]",
        "(?<n>a)", "(?x) a", "\\R", "\\X", "[\\W]", "(*FAIL)", "\\xFF",
        "[[:punct:]]", "(?#c)", "\\pL"}) {
    EXPECT_EQ(TranslateOniguruma(pattern).status().code(),
              absl::StatusCode::kUnimplemented)
        << pattern;
  }
  for (const char* const pattern :
       {"(", ")", "[", "\\", "a(?i", "\\p{L", "\\x{110000", "*"}) {
    EXPECT_EQ(Regex::Compile(pattern).status().code(),
              absl::StatusCode::kInvalidArgument)
        << pattern;
  }
}

TEST(RegexTest, BacktrackingIsBounded) {
  const absl::StatusOr<Regex> regex = Regex::Compile("(a+)+$");
  ASSERT_TRUE(regex.ok());
  std::vector<MatchSpan> spans;
  const absl::Status status =
      regex->FindAll(std::string(64, 'a') + "b", &spans);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
}

TEST(RegexTest, LongRunsAreNoTrouble) {
  const std::string spaces(200'000, ' ');
  EXPECT_THAT(Found("\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+", spaces + "a"),
              ElementsAre(spaces.substr(1), " "));
}

}  // namespace
}  // namespace baton::router::regex_test
