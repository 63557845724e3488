// A set of tokens of a vocabulary, as a bit for each: those that may be
// sampled. Immutable; any thread.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "common/ids.h"

namespace baton::scheduling {

class TokenMask final {
 public:
  // `tokens` in any order, some perhaps twice.
  // REQUIRES: tokens are in [0, vocab_size), and there is one.
  TokenMask(int32_t vocab_size, absl::Span<const TokenId> tokens);

  int32_t vocab_size() const { return vocab_size_; }
  // REQUIRES: 0 <= token < vocab_size().
  bool Has(TokenId token) const {
    return (words_[token / 32] >> (token % 32) & 1u) != 0;
  }
  // Whether there is a token that is not one of `others`.
  bool HasBeside(absl::Span<const TokenId> others) const;
  // Rising.
  std::vector<TokenId> Tokens() const;
  // Token t is bit t % 32, the lowest first, of word t / 32. Bits behind the
  // vocabulary are 0.
  absl::Span<const uint32_t> words() const { return words_; }

  friend bool operator==(const TokenMask&, const TokenMask&) = default;

 private:
  int32_t vocab_size_;
  std::vector<uint32_t> words_;
};

}  // namespace baton::scheduling
