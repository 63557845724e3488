#include "workload/prompt_tokens.h"

#include <algorithm>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace baton::workload {
namespace {

constexpr TokenRange kRange = {.first = 1000, .count = 500};

PlannedRequest Prompt(int32_t tokens, std::vector<uint64_t> prefix = {}) {
  PlannedRequest request;
  request.prompt_tokens = tokens;
  request.prefix = std::move(prefix);
  request.prefix_block = request.prefix.empty() ? 0 : 16;
  return request;
}

size_t Common(const std::vector<uint32_t>& a, const std::vector<uint32_t>& b) {
  return static_cast<size_t>(
      std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin());
}

TEST(PromptTokensTest, LengthAndRangeAreAsAsked) {
  const auto tokens = PromptTokens(Prompt(10'000), 0, 1, kRange);
  EXPECT_EQ(tokens.size(), 10'000u);
  EXPECT_EQ(*std::min_element(tokens.begin(), tokens.end()), 1000u);
  EXPECT_EQ(*std::max_element(tokens.begin(), tokens.end()), 1499u);
}

TEST(PromptTokensTest, RequestsDifferAndStayTheSame) {
  const auto first = PromptTokens(Prompt(100), 0, 1, kRange);
  EXPECT_EQ(first, PromptTokens(Prompt(100), 0, 1, kRange));
  EXPECT_LT(Common(first, PromptTokens(Prompt(100), 1, 1, kRange)), 5u);
  EXPECT_LT(Common(first, PromptTokens(Prompt(100), 0, 2, kRange)), 5u);
}

TEST(PromptTokensTest, EqualPrefixesGiveEqualTokens) {
  const auto a = PromptTokens(Prompt(60, {7, 8, 9, 10}), 0, 1, kRange);
  const auto b = PromptTokens(Prompt(60, {7, 8, 1, 10}), 1, 1, kRange);
  EXPECT_GE(Common(a, b), 32u);
  EXPECT_LT(Common(a, b), 37u);
  // The last block may be cut off, and what the list does not cover differs.
  const auto shorter = PromptTokens(Prompt(20, {7, 8}), 2, 1, kRange);
  EXPECT_EQ(Common(shorter, a), 20u);
  const auto longer = PromptTokens(Prompt(100, {7, 8}), 3, 1, kRange);
  EXPECT_EQ(longer.size(), 100u);
  EXPECT_GE(Common(longer, a), 32u);
  EXPECT_LT(Common(longer, a), 37u);
}

TEST(PromptTokensTest, TextHasAWordForEachToken) {
  const std::string text = PromptText(Prompt(50, {1}), 0, 1);
  EXPECT_EQ(std::count(text.begin(), text.end(), ' '), 49);
  const std::string other = PromptText(Prompt(50, {1}), 1, 1);
  EXPECT_NE(text, other);
  EXPECT_EQ(text.substr(0, 40), other.substr(0, 40));
}

}  // namespace
}  // namespace baton::workload
