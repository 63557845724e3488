#include "common/stable_hash.h"

#include <string>

#include "absl/strings/str_format.h"
#include "gtest/gtest.h"

namespace baton {
namespace {

std::string HashOf(const std::string& text) {
  const Hash128 hash = StableHash(absl::MakeConstSpan(
      reinterpret_cast<const std::byte*>(text.data()), text.size()));
  return absl::StrFormat("%016x%016x", hash.high, hash.low);
}

// What `xxhsum -H2` says. These values are fixed for ever.
TEST(StableHashTest, IsXxh3Of128Bits) {
  EXPECT_EQ(HashOf(""), "99aa06d3014798d86001c324468d497f");
  EXPECT_EQ(HashOf("a"), "a96faf705af16834e6c632b61e964e1f");
  EXPECT_EQ(HashOf("abc"), "06b05ab6733a618578af5f94892f3950");
}

TEST(StableHashTest, EveryBitCounts) {
  const std::string text(80, 'x');
  for (size_t i = 0; i < text.size() * 8; ++i) {
    std::string other = text;
    other[i / 8] ^= static_cast<char>(1 << (i % 8));
    EXPECT_NE(HashOf(other), HashOf(text)) << "bit " << i;
  }
}

}  // namespace
}  // namespace baton
