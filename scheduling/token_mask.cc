#include "scheduling/token_mask.h"

#include <algorithm>
#include <bit>

#include "common/log.h"

namespace baton::scheduling {

TokenMask::TokenMask(int32_t vocab_size, absl::Span<const TokenId> tokens)
    : vocab_size_(vocab_size), words_((int64_t{vocab_size} + 31) / 32) {
  CHECK(!tokens.empty());
  for (const TokenId token : tokens) {
    CHECK(token >= 0 && token < vocab_size) << token;
    words_[token / 32] |= 1u << (token % 32);
  }
}

bool TokenMask::HasBeside(absl::Span<const TokenId> others) const {
  TokenMask left = *this;
  for (const TokenId token : others) {
    if (token < 0 || token >= vocab_size_) continue;
    left.words_[token / 32] &= ~(1u << (token % 32));
  }
  return std::any_of(left.words_.begin(), left.words_.end(),
                     [](uint32_t word) { return word != 0; });
}

std::vector<TokenId> TokenMask::Tokens() const {
  std::vector<TokenId> tokens;
  for (size_t i = 0; i < words_.size(); ++i) {
    for (uint32_t word = words_[i]; word != 0; word &= word - 1) {
      tokens.push_back(static_cast<TokenId>(32 * i) +
                       static_cast<TokenId>(std::countr_zero(word)));
    }
  }
  return tokens;
}

}  // namespace baton::scheduling
