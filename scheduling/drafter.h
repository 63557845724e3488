// Guesses at what a sequence will say next, for a step that checks several at
// once (speculative decoding): what followed the last time that its last tokens
// came in a row (prompt lookup). Of texts that repeat themselves or their
// prompt (code that is edited, answers that quote) many come true, and a step
// that is bound by reading weights costs hardly more with a few tokens than
// with one. No model, no weights: a table of where each two and each three
// tokens came last, some 50 bytes a token.
//
// Source: A. Saxena, Prompt Lookup Decoding (2023); here also with what the
// output itself said before.
//
// Pure. One thread.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/types/span.h"
#include "common/ids.h"

namespace baton::scheduling {

// How often guesses of a kind come true: of the last some twenty that were
// checked.
class GuessChance final {
 public:
  // Before anything was checked.
  static constexpr double kUnknown = 0.5;

  // That one comes true when those before it did, in (0, 1).
  double value() const { return value_; }

  // Of `count` guesses that were checked, the first `right` came true and, if
  // there is one, the next did not. REQUIRES: 0 <= right <= count.
  void Learn(int32_t count, int32_t right);
  // Nothing was checked, as it would not have paid: what was learned is
  // forgotten in time, so that a text that has changed gets another chance.
  void Skip();

 private:
  double value_ = kUnknown;
};

class Drafter final {
 public:
  // Up to `most` tokens that may follow `tokens`, which are those of the calls
  // before and more. Empty when their end never came before, as far as is
  // known: of a long prompt a call takes in a part. Valid until the next call.
  absl::Span<const TokenId> Guess(absl::Span<const TokenId> tokens,
                                  int32_t most);

 private:
  // Where the token after the last occurrence is.
  absl::flat_hash_map<uint64_t, int32_t> after_two_;
  absl::flat_hash_map<uint64_t, int32_t> after_three_;
  // Tokens whose ends are in the tables.
  int32_t indexed_ = 0;
  std::vector<TokenId> guess_;
};

}  // namespace baton::scheduling
