#include "router/text/utf8.h"

#include <gtest/gtest.h>

#include "router/text/byte_alphabet.h"

namespace baton::router {
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

TEST(ByteAlphabetTest, IsABijection) {
  for (int byte = 0; byte < 256; ++byte) {
    const std::string& character = ByteCharacter(static_cast<uint8_t>(byte));
    const Utf8Step step = NextUtf8(character, 0);
    EXPECT_EQ(step.size, static_cast<int>(character.size()));
    EXPECT_EQ(ByteOfCharacter(step.code_point), byte);
  }
  EXPECT_EQ(ByteCharacter(' '), "\xC4\xA0");
  EXPECT_EQ(ByteOfCharacter(' '), std::nullopt);
  EXPECT_EQ(ByteOfCharacter(0x144), std::nullopt);
}

TEST(ByteAlphabetTest, OtherTokensAreTheirOwnBytes) {
  std::string bytes;
  AppendByteLevelToken("\xC4\xA0h", &bytes);
  AppendByteLevelToken("\xC4\xA0h h", &bytes);
  EXPECT_EQ(bytes, " h\xC4\xA0h h");
}

}  // namespace
}  // namespace baton::router
