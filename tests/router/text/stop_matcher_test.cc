#include "router/text/stop_matcher.h"

#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "common/utf8.h"

namespace baton::router {
namespace {

// Pushes `pieces`; what was shown in all, and that nothing was shown too early.
std::string Shown(StopMatcher* matcher,
                  const std::vector<std::string>& pieces) {
  std::string shown;
  for (const std::string& piece : pieces) shown += matcher->Push(piece);
  return shown + matcher->Finish();
}

TEST(StopMatcherTest, WithoutStopStringsAllIsShownAtOnce) {
  StopMatcher matcher({});
  EXPECT_EQ(matcher.Push("abc"), "abc");
  EXPECT_EQ(matcher.Finish(), "");
  EXPECT_FALSE(matcher.stopped());
}

TEST(StopMatcherTest, EndsBeforeTheStopString) {
  StopMatcher matcher({"END"});
  EXPECT_EQ(matcher.Push("a tale. END of it"), "a tale. ");
  ASSERT_TRUE(matcher.stopped());
  EXPECT_EQ(matcher.stop(), "END");
  EXPECT_EQ(matcher.Push("more"), "");
  EXPECT_EQ(matcher.Finish(), "");
}

TEST(StopMatcherTest, HoldsBackWhatMayBeItsBeginning) {
  StopMatcher matcher({"\n\nUser:"});
  EXPECT_EQ(matcher.Push("Hi.\n"), "Hi.");
  EXPECT_EQ(matcher.Push("\nUs"), "");
  EXPECT_EQ(matcher.Push("ually"), "\n\nUsually");
  EXPECT_EQ(matcher.Push(" so\n\nUser"), " so");
  EXPECT_EQ(matcher.Push(":"), "");
  EXPECT_TRUE(matcher.stopped());
}

TEST(StopMatcherTest, ShowsWhatWasHeldWhenTheTextEnds) {
  StopMatcher matcher({"abcd"});
  EXPECT_EQ(matcher.Push("xabc"), "x");
  EXPECT_EQ(matcher.Finish(), "abc");
  EXPECT_FALSE(matcher.stopped());
}

TEST(StopMatcherTest, FindsAStopStringThatOverlapsItself) {
  StopMatcher matcher({"aabaaa"});
  EXPECT_EQ(Shown(&matcher, {"aabaa", "baaa", "x"}), "aab");
  EXPECT_TRUE(matcher.stopped());
}

TEST(StopMatcherTest, TheOneThatIsCompleteFirstWins) {
  StopMatcher first({"abcd", "c"});
  EXPECT_EQ(Shown(&first, {"xabcd"}), "xab");
  EXPECT_EQ(first.stop(), "c");
  // Complete with the same byte: the longest.
  StopMatcher longest({"d", "bcd", "cd"});
  EXPECT_EQ(Shown(&longest, {"xabcd"}), "xa");
  EXPECT_EQ(longest.stop(), "bcd");
}

// The end of the text before the first complete stop string, by brute force.
std::string Reference(const std::string& text,
                      const std::vector<std::string>& stops) {
  for (size_t end = 1; end <= text.size(); ++end) {
    size_t longest = 0;
    for (const std::string& stop : stops) {
      if (end >= stop.size() &&
          text.compare(end - stop.size(), stop.size(), stop) == 0) {
        longest = std::max(longest, stop.size());
      }
    }
    if (longest > 0) return text.substr(0, end - longest);
  }
  return text;
}

TEST(StopMatcherTest, DoesNotDependOnThePieces) {
  std::mt19937 random(7);
  const auto draw = [&random](int most) {
    return static_cast<int>(random() % static_cast<uint32_t>(most));
  };
  const std::vector<std::string> letters = {"a", "b", "\xC3\xA9", "\n"};
  const auto word = [&](int most) {
    std::string out;
    for (int i = 1 + draw(most); i > 0; --i) out += letters[draw(4)];
    return out;
  };
  int stopped = 0;
  for (int round = 0; round < 3000; ++round) {
    std::vector<std::string> stops;
    for (int i = 1 + draw(4); i > 0; --i) stops.push_back(word(6));
    std::vector<std::string> pieces;
    std::string text;
    for (int i = draw(20); i > 0; --i) {
      pieces.push_back(word(4));
      text += pieces.back();
    }
    StopMatcher matcher(stops);
    std::string shown;
    const std::string expected = Reference(text, stops);
    for (const std::string& piece : pieces) {
      const std::string now = matcher.Push(piece);
      EXPECT_TRUE(IsValidUtf8(now));
      shown += now;
      // Never a byte of a stop string.
      ASSERT_LE(shown.size(), expected.size());
    }
    shown += matcher.Finish();
    ASSERT_EQ(shown, expected) << "round " << round;
    ASSERT_EQ(matcher.stopped(), expected.size() < text.size());
    stopped += matcher.stopped();
  }
  EXPECT_GT(stopped, 500);
  EXPECT_LT(stopped, 2900);
}

TEST(StopMatcherTest, LongRunsOfNearMissesAreCheap) {
  // Quadratic work would take minutes.
  StopMatcher matcher({std::string(1024, 'a') + "b"});
  size_t shown = 0;
  for (int i = 0; i < 1000; ++i) {
    shown += matcher.Push(std::string(1024, 'a')).size();
  }
  EXPECT_EQ(shown, 1000u * 1024 - 1024);
}

}  // namespace
}  // namespace baton::router
