#include "router/text/byte_alphabet.h"

#include <optional>
#include <string>

#include <gtest/gtest.h>

#include "common/utf8.h"

namespace baton::router {
namespace {

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
