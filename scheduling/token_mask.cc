#include "scheduling/token_mask.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/log.h"

namespace baton::scheduling {

TokenMask::TokenMask(int32_t vocab_size, absl::Span<const TokenId> tokens)
    : TokenMask(vocab_size) {
  CHECK(!tokens.empty());
  Add(tokens);
}

absl::StatusOr<TokenMask> TokenMask::FromBytes(int32_t vocab_size,
                                               absl::string_view bytes) {
  const size_t wanted = (static_cast<size_t>(vocab_size) + 7) / 8;
  if (bytes.size() != wanted) {
    return absl::InvalidArgumentError(
        absl::StrCat("has ", bytes.size(), " bytes, a vocabulary of ",
                     vocab_size, " takes ", wanted));
  }
  TokenMask mask(vocab_size);
  for (size_t i = 0; i < bytes.size(); ++i) {
    mask.words_[i / 4] |= uint32_t{static_cast<unsigned char>(bytes[i])}
                          << (8 * (i % 4));
  }
  const int32_t last = vocab_size % 32;
  if (last != 0 && mask.words_.back() >> last != 0) {
    return absl::InvalidArgumentError("has tokens beyond the vocabulary");
  }
  if (mask.num_tokens() == 0) return absl::InvalidArgumentError("has no token");
  return mask;
}

TokenMask TokenMask::FromWords(int32_t vocab_size,
                               std::vector<uint32_t> words) {
  TokenMask mask(vocab_size);
  CHECK_EQ(mask.words_.size(), words.size());
  mask.words_ = std::move(words);
  return mask;
}

void TokenMask::Add(absl::Span<const TokenId> tokens) {
  for (const TokenId token : tokens) {
    CHECK(token >= 0 && token < vocab_size_) << token;
    words_[token / 32] |= 1u << (token % 32);
  }
}

void TokenMask::Remove(absl::Span<const TokenId> tokens) {
  for (const TokenId token : tokens) {
    CHECK(token >= 0 && token < vocab_size_) << token;
    words_[token / 32] &= ~(1u << (token % 32));
  }
}

void TokenMask::KeepOnly(const TokenMask& others) {
  CHECK_EQ(vocab_size_, others.vocab_size_);
  for (size_t i = 0; i < words_.size(); ++i) words_[i] &= others.words_[i];
}

std::string TokenMask::ToBytes() const {
  std::string bytes((static_cast<size_t>(vocab_size_) + 7) / 8, '\0');
  for (size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<char>(words_[i / 4] >> (8 * (i % 4)) & 255u);
  }
  return bytes;
}

int32_t TokenMask::num_tokens() const {
  int32_t count = 0;
  for (const uint32_t word : words_) count += std::popcount(word);
  return count;
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
