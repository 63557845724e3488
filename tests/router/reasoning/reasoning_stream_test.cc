#include "router/reasoning/reasoning_stream.h"

#include <array>
#include <ostream>
#include <random>
#include <string>

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

namespace baton::router::reasoning_stream_test {
namespace {

struct Heard {
  std::string reasoning;
  std::string answer;
  bool operator==(const Heard&) const = default;
};

void PrintTo(const Heard& heard, std::ostream* out) {
  *out << "reasoning \"" << heard.reasoning << "\", answer \"" << heard.answer
       << '"';
}

void Add(const ReasoningStream::Piece& piece, Heard* heard) {
  // Nothing is thought behind the answer's beginning.
  EXPECT_TRUE(piece.reasoning.empty() || heard->answer.empty());
  heard->reasoning += piece.reasoning;
  heard->answer += piece.answer;
}

// In pieces that `cut` gives the sizes of.
template <typename Cut>
Heard Listen(ReasoningStart start, const std::string& text, Cut cut) {
  ReasoningStream stream(start);
  Heard heard;
  for (size_t at = 0; at < text.size();) {
    const size_t size = cut();
    Add(stream.Push(absl::string_view(text).substr(at, size)), &heard);
    at += size;
  }
  Add(stream.Finish(), &heard);
  return heard;
}

Heard Whole(ReasoningStart start, const std::string& text) {
  return Listen(start, text, [&] { return text.size(); });
}

void Expect(ReasoningStart start, const std::string& text,
            const Heard& expected) {
  SCOPED_TRACE(text);
  EXPECT_EQ(Whole(start, text), expected);
  EXPECT_EQ(Listen(start, text, [] { return 1; }), expected);
}

constexpr auto kPossible = ReasoningStart::kPossible;
constexpr auto kOpen = ReasoningStart::kOpen;
constexpr auto kNone = ReasoningStart::kNone;

TEST(ReasoningStreamTest, AsQwenWritesIt) {
  Expect(kPossible, "<think>\nSo.\n\nYes.\n</think>\n\nIt is 4.\n",
         {"So.\n\nYes.", "It is 4.\n"});
}

TEST(ReasoningStreamTest, BegunByThePrompt) {
  Expect(kOpen, "So.\n</think>\n\nIt is 4.", {"So.", "It is 4."});
  // Some write the marker once more.
  Expect(kOpen, "\n<think>\nSo.\n</think>\n\nIt is 4.", {"So.", "It is 4."});
  Expect(kOpen, "<thin</think>4", {"<thin", "4"});
  Expect(kOpen, "</think>4", {"", "4"});
}

TEST(ReasoningStreamTest, WithoutMarkersItIsTheAnswer) {
  Expect(kPossible, "It is 4.", {"", "It is 4."});
  Expect(kPossible, " \n It is <think>4</think>.",
         {"", " \n It is <think>4</think>."});
  Expect(kPossible, "<thinking>4</think>", {"", "<thinking>4</think>"});
  Expect(kNone, "<think>4</think>5", {"", "<think>4</think>5"});
  Expect(kPossible, "", {"", ""});
}

TEST(ReasoningStreamTest, NothingThought) {
  Expect(kPossible, "<think>\n\n</think>\n\n4", {"", "4"});
  Expect(kPossible, "<think></think>", {"", ""});
}

TEST(ReasoningStreamTest, CutOff) {
  Expect(kPossible, "<think>\nSo.\n\n", {"So.", ""});
  Expect(kPossible, "<think>\nSo.\n</thi", {"So.\n</thi", ""});
  Expect(kPossible, "  <thi", {"", "  <thi"});
  Expect(kPossible, "<think>So.</think>\n\n", {"So.", ""});
  Expect(kOpen, "So.", {"So.", ""});
  Expect(kOpen, " <thi", {" <thi", ""});
}

TEST(ReasoningStreamTest, WhatIsAlmostAMarker) {
  Expect(kPossible, "<think><</think></think>4", {"<", "</think>4"});
  Expect(kPossible, "<think></</think>4", {"</", "4"});
  Expect(kPossible, "<think>a\n<\n</\n</think >\n</think>4",
         {"a\n<\n</\n</think >", "4"});
  Expect(kPossible, "<think>\n</x></think>4", {"</x>", "4"});
  Expect(kPossible, "<think>\u00e4</th\u00e4</think>\u00e4",
         {"\u00e4</th\u00e4", "\u00e4"});
  // Only the first one ends it.
  Expect(kPossible, "<think>a</think>b</think>c", {"a", "b</think>c"});
}

TEST(ReasoningStreamTest, SaysWhetherItThinks) {
  ReasoningStream stream(kPossible);
  EXPECT_TRUE(stream.undecided());
  stream.Push("<thi");
  EXPECT_TRUE(stream.undecided());
  EXPECT_FALSE(stream.thinking());
  EXPECT_FALSE(stream.thought());
  stream.Push("nk>");
  EXPECT_FALSE(stream.undecided());
  EXPECT_TRUE(stream.thinking());
  stream.Push("So.</thi");
  EXPECT_TRUE(stream.thinking());
  stream.Push("nk>");
  EXPECT_FALSE(stream.thinking());
  EXPECT_TRUE(stream.thought());

  ReasoningStream open(kOpen);
  EXPECT_FALSE(open.undecided());
  EXPECT_TRUE(open.thinking());

  ReasoningStream none(kNone);
  EXPECT_FALSE(none.undecided());
  EXPECT_FALSE(none.thinking());
  none.Push("<think></think>");
  EXPECT_FALSE(none.thought());
}

TEST(ReasoningStreamTest, LongRunsTakeLinearTime) {
  // Each byte by itself, as tokens come; with a quadratic one these would take
  // hours.
  const std::string breaks(4 << 20, '\n');
  EXPECT_EQ(
      Listen(kPossible, absl::StrCat("<think>a", breaks, "b"), [] { return 1; })
          .reasoning,
      absl::StrCat("a", breaks, "b"));
  EXPECT_EQ(Listen(kPossible, breaks, [] { return 1; }).answer, breaks);
}

// Text of markers and their parts: however it is cut, it says the same, and
// nothing but markers, and white space beside them, is lost.
TEST(ReasoningStreamTest, CutsSayTheSame) {
  std::mt19937 random(7);
  const char* const parts[] = {"<think>", "</think>", "<", "/", "think", ">",
                               "</",      "\n",       " ", "a", "\u20ac"};
  const auto below = [&](size_t n) { return random() % n; };
  for (int i = 0; i < 20000; ++i) {
    std::string text;
    for (size_t n = below(12); n > 0; --n) text += parts[below(11)];
    const ReasoningStart start = std::array{kNone, kPossible, kOpen}[below(3)];
    const Heard whole = Whole(start, text);
    SCOPED_TRACE(text);
    ASSERT_EQ(Listen(start, text, [&] { return 1 + below(4); }), whole);
    // The answer is the end of the text, and the rest a part of it.
    ASSERT_TRUE(whole.answer.empty() || text.ends_with(whole.answer));
    const std::string before =
        text.substr(0, text.size() - whole.answer.size());
    ASSERT_NE(before.find(whole.reasoning), std::string::npos);
    if (start == kNone) {
      ASSERT_EQ(whole.answer, text);
    }
    if (!whole.answer.empty() && !before.empty()) {
      ASSERT_NE(before.find("</think>"), std::string::npos);
    }
  }
}

}  // namespace
}  // namespace baton::router::reasoning_stream_test
