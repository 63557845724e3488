// A set of tokens of a vocabulary, as a bit for each: those that may be
// sampled. A plain value; any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/ids.h"

namespace baton::scheduling {

class TokenMask final {
 public:
  // `tokens` in any order, some perhaps twice.
  // REQUIRES: tokens are in [0, vocab_size), and there is one.
  TokenMask(int32_t vocab_size, absl::Span<const TokenId> tokens);

  // Of a message. InvalidArgument says what is wrong of `bytes`, as ToBytes
  // makes them. REQUIRES: vocab_size > 0.
  static absl::StatusOr<TokenMask> FromBytes(int32_t vocab_size,
                                             absl::string_view bytes);
  // REQUIRES: `words` are as words() gives them; there may be no token.
  static TokenMask FromWords(int32_t vocab_size, std::vector<uint32_t> words);
  // Token t is bit t % 8, the lowest first, of byte t / 8; as many bytes as
  // the vocabulary takes.
  std::string ToBytes() const;

  int32_t vocab_size() const { return vocab_size_; }
  int32_t num_tokens() const;
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

  // REQUIRES: tokens are in [0, vocab_size()), and `others` is of the same
  // vocabulary. There may be no token afterwards.
  void Add(absl::Span<const TokenId> tokens);
  void Remove(absl::Span<const TokenId> tokens);
  void KeepOnly(const TokenMask& others);

  friend bool operator==(const TokenMask&, const TokenMask&) = default;

 private:
  // None yet.
  explicit TokenMask(int32_t vocab_size)
      : vocab_size_(vocab_size), words_((int64_t{vocab_size} + 31) / 32) {}

  int32_t vocab_size_;
  std::vector<uint32_t> words_;
};

}  // namespace baton::scheduling
