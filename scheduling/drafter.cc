#include "scheduling/drafter.h"

#include <algorithm>

#include "common/log.h"

namespace baton::scheduling {
namespace {

// What a guess that was checked tells, against all that were before it; and
// what a guess that was not makes of that.
constexpr double kNews = 0.1;
constexpr double kForget = 0.01;

// Some 0.2 ms of a step.
constexpr int32_t kIndexedPerGuess = 2048;

// The two and the three tokens before `end`. Those of three may share a key
// with others: a guess is a guess.
uint64_t Two(absl::Span<const TokenId> tokens, int32_t end) {
  return static_cast<uint64_t>(static_cast<uint32_t>(tokens[end - 2])) << 32 |
         static_cast<uint32_t>(tokens[end - 1]);
}
uint64_t Three(absl::Span<const TokenId> tokens, int32_t end) {
  constexpr uint64_t kOdd = 0x9e3779b97f4a7c15;
  return Two(tokens, end) ^ kOdd * (static_cast<uint64_t>(tokens[end - 3]) + 1);
}

}  // namespace

absl::Span<const TokenId> Drafter::Guess(absl::Span<const TokenId> tokens,
                                         int32_t most) {
  const auto size = static_cast<int32_t>(tokens.size());
  CHECK_GE(size, indexed_);
  guess_.clear();
  // Ends that something follows: not the last one, which is looked up.
  const int32_t until = std::min(size, indexed_ + kIndexedPerGuess);
  for (int32_t end = std::max(indexed_, 2); end < until; ++end) {
    after_two_[Two(tokens, end)] = end;
    if (end >= 3) after_three_[Three(tokens, end)] = end;
  }
  indexed_ = until;
  if (size < 2 || most <= 0) return guess_;
  int32_t from = 0;
  if (size >= 3) {
    const auto three = after_three_.find(Three(tokens, size));
    if (three != after_three_.end()) from = three->second;
  }
  if (from == 0) {
    const auto two = after_two_.find(Two(tokens, size));
    if (two == after_two_.end()) return guess_;
    from = two->second;
  }
  // What repeats itself goes on behind its end.
  for (int32_t i = 0; i < most; ++i) {
    const int32_t at = from + i;
    guess_.push_back(at < size ? tokens[at] : guess_[at - size]);
  }
  return guess_;
}

void GuessChance::Learn(int32_t count, int32_t right) {
  CHECK(0 <= right && right <= count);
  for (int32_t i = 0; i < std::min(right + 1, count); ++i) {
    value_ += kNews * ((i < right ? 1.0 : 0.0) - value_);
  }
}

void GuessChance::Skip() { value_ += kForget * (kUnknown - value_); }

}  // namespace baton::scheduling
