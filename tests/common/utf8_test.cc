#include "common/utf8.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace baton {
namespace {

TEST(Utf8Test, EveryScalarValueGoesThereAndBack) {
  for (char32_t c = 0; c < 0x110000; ++c) {
    if (c >= 0xD800 && c < 0xE000) continue;
    std::string text;
    AppendUtf8(c, &text);
    const Utf8Step step = NextUtf8(text, 0);
    ASSERT_EQ(step.kind, Utf8Kind::kCharacter);
    ASSERT_EQ(step.size, static_cast<int>(text.size()));
    ASSERT_EQ(step.code_point, c);
    for (size_t size = 1; size < text.size(); ++size) {
      const Utf8Step cut = NextUtf8(text.substr(0, size), 0);
      ASSERT_EQ(cut.kind, Utf8Kind::kIncomplete);
      ASSERT_EQ(cut.size, static_cast<int>(size));
    }
  }
}

TEST(Utf8Test, RefusesOverlongSurrogatesAndTooLarge) {
  for (const char* const text :
       {"\xC0\x80", "\xC1\xBF", "\xE0\x80\x80", "\xED\xA0\x80",
        "\xF0\x80\x80\x80", "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\x80",
        "\xFF"}) {
    EXPECT_FALSE(IsValidUtf8(text));
    EXPECT_EQ(NextUtf8(text, 0).kind, Utf8Kind::kIllFormed);
    EXPECT_EQ(NextUtf8(text, 0).size, 1);
  }
}

// The example of the Unicode Standard 15, table 3-11.
TEST(Utf8Test, ReplacesMaximalSubparts) {
  const std::string r(kReplacementCharacter);
  EXPECT_EQ(ReplaceIllFormedUtf8("\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41"),
            r + r + r + r + "A");
  EXPECT_EQ(ReplaceIllFormedUtf8("a\xED\xA0\x80z"), "a" + r + r + r + "z");
  EXPECT_EQ(ReplaceIllFormedUtf8("plain \xC3\xA9"), "plain \xC3\xA9");
}

TEST(Utf8Test, CutsBetweenCharacters) {
  const std::string text = "a\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80";
  const std::vector<size_t> kept = {0, 1, 1, 3, 3, 3, 6, 6, 6, 6, 10, 10};
  for (size_t bytes = 0; bytes < kept.size(); ++bytes) {
    EXPECT_EQ(CutUtf8(text, bytes), text.substr(0, kept[bytes])) << bytes;
  }
  // What is broken is repaired, and only what the cut broke is dropped.
  EXPECT_EQ(CutUtf8("a\xFFz", 10), "a\xEF\xBF\xBDz");
  EXPECT_EQ(CutUtf8("a\xE2\x82", 10), "a\xEF\xBF\xBD");
  EXPECT_EQ(CutUtf8("a\xE2\x82 b", 2), "a");
}

TEST(Utf8Test, KnowsWhatControlsATerminal) {
  for (const char32_t c :
       {0x00, 0x1B, 0x7F, 0x9F, 0x200F, 0x2028, 0x202E, 0x2069}) {
    EXPECT_TRUE(IsControlCharacter(c)) << static_cast<uint32_t>(c);
  }
  for (const char32_t c : {0x20, 0x7E, 0xA0, 0x200D, 0x2027, 0x206A, 0x1F600}) {
    EXPECT_FALSE(IsControlCharacter(c)) << static_cast<uint32_t>(c);
  }
}

}  // namespace
}  // namespace baton
