#include "router/text/byte_alphabet.h"

#include <array>

#include "absl/strings/str_cat.h"
#include "common/utf8.h"

namespace baton::router {
namespace {

constexpr char32_t kFirstMoved = 0x100;
constexpr int kMovedCount = 68;

constexpr bool StandsForItself(int byte) {
  return (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) ||
         (byte >= 0xAE && byte <= 0xFF);
}

struct Alphabet {
  std::array<std::string, 256> characters;
  std::array<uint8_t, kFirstMoved + kMovedCount> bytes{};
  std::array<bool, kFirstMoved + kMovedCount> known{};

  Alphabet() {
    char32_t moved = kFirstMoved;
    for (int byte = 0; byte < 256; ++byte) {
      const char32_t code_point =
          StandsForItself(byte) ? static_cast<char32_t>(byte) : moved++;
      AppendUtf8(code_point, &characters[byte]);
      bytes[code_point] = static_cast<uint8_t>(byte);
      known[code_point] = true;
    }
  }
};

const Alphabet& TheAlphabet() {
  static const Alphabet* const alphabet = new Alphabet;
  return *alphabet;
}

}  // namespace

const std::string& ByteCharacter(uint8_t byte) {
  return TheAlphabet().characters[byte];
}

std::optional<uint8_t> ByteOfCharacter(char32_t code_point) {
  const Alphabet& alphabet = TheAlphabet();
  if (code_point >= alphabet.known.size() || !alphabet.known[code_point]) {
    return std::nullopt;
  }
  return alphabet.bytes[code_point];
}

void AppendByteLevelToken(absl::string_view token, std::string* bytes) {
  const size_t before = bytes->size();
  for (size_t at = 0; at < token.size();) {
    const Utf8Step step = NextUtf8(token, at);
    const std::optional<uint8_t> byte = ByteOfCharacter(step.code_point);
    if (!byte.has_value()) {
      bytes->resize(before);
      absl::StrAppend(bytes, token);
      return;
    }
    bytes->push_back(static_cast<char>(*byte));
    at += step.size;
  }
}

}  // namespace baton::router
