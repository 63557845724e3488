// The grammar of JSON numbers within bounds. Any thread.
#pragma once

#include <cstdint>
#include <optional>

#include "scheduling/grammar.h"

namespace baton::router {

// How long a number may get, or a model may write digits for ever. Without
// bounds, an integer has 64 bits.
inline constexpr uint32_t kMaxWholeDigits = 16;
inline constexpr uint32_t kMaxFractionDigits = 16;
inline constexpr uint32_t kMaxExponentDigits = 2;  // so that it is a double
// Of a number with bounds: so few that none of them gets lost, and the number
// across its bound, when somebody reads it as a double.
inline constexpr uint32_t kMaxBoundedFractionDigits = 8;

// The integers from `least` to `most`, without exponents or fractions.
// REQUIRES: least <= most.
scheduling::GrammarBuilder::Expression WriteIntegers(
    int64_t least, int64_t most, scheduling::GrammarBuilder* grammar);

struct NumberBounds {
  std::optional<int64_t> least;
  bool above_least = false;  // the least itself is not allowed
  std::optional<int64_t> most;
  bool below_most = false;
};

// The numbers within `bounds`, but for those with an exponent on a side of zero
// that a bound cuts. Nothing if there is none.
std::optional<scheduling::GrammarBuilder::Expression> WriteNumbers(
    const NumberBounds& bounds, scheduling::GrammarBuilder* grammar);

}  // namespace baton::router
