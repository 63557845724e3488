#include "router/text/text_pattern.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "router/text/unicode.h"

namespace baton::router {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<std::string> Pieces(const TextPattern& pattern,
                                SplitBehavior behavior, bool invert,
                                const std::string& text) {
  std::vector<MatchSpan> matches;
  EXPECT_TRUE(pattern.FindAll(text, &matches).ok());
  std::vector<std::string> pieces;
  for (const TextSpan& span : SplitAtMatches(matches, behavior, invert)) {
    pieces.push_back(text.substr(span.begin, span.end - span.begin));
  }
  return pieces;
}

// The examples of Hugging Face's documentation of SplitDelimiterBehavior.
TEST(SplitTest, EachBehavior) {
  const TextPattern dash("-");
  const std::string text = "the-final--countdown";
  const auto split = [&](SplitBehavior behavior) {
    return Pieces(dash, behavior, /*invert=*/false, text);
  };
  EXPECT_THAT(split(SplitBehavior::kRemoved),
              ElementsAre("the", "final", "countdown"));
  EXPECT_THAT(split(SplitBehavior::kIsolated),
              ElementsAre("the", "-", "final", "-", "-", "countdown"));
  EXPECT_THAT(split(SplitBehavior::kMergedWithPrevious),
              ElementsAre("the-", "final-", "-", "countdown"));
  EXPECT_THAT(split(SplitBehavior::kMergedWithNext),
              ElementsAre("the", "-final", "-", "-countdown"));
  EXPECT_THAT(split(SplitBehavior::kContiguous),
              ElementsAre("the", "-", "final", "--", "countdown"));
}

TEST(SplitTest, InvertKeepsTheMatches) {
  EXPECT_THAT(Pieces(TextPattern("ab"), SplitBehavior::kRemoved,
                     /*invert=*/true, "xabyab"),
              ElementsAre("ab", "ab"));
}

TEST(SplitTest, NothingToSplit) {
  EXPECT_THAT(Pieces(TextPattern("-"), SplitBehavior::kIsolated, false, ""),
              IsEmpty());
  EXPECT_THAT(Pieces(TextPattern("-"), SplitBehavior::kIsolated, false, "ab"),
              ElementsAre("ab"));
}

TEST(SplitTest, CharacterClasses) {
  EXPECT_THAT(Pieces(TextPattern(&IsNumeric), SplitBehavior::kIsolated, false,
                     "a12\xC2\xBD"
                     "b"),
              ElementsAre("a", "1", "2", "\xC2\xBD", "b"));
}

}  // namespace
}  // namespace baton::router
