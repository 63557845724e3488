#include "router/prefix_hints.h"

#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/metrics/metrics.h"
#include "scheduling/block_hash.h"

namespace baton::router {
namespace {

using scheduling::CachedPrompt;
using scheduling::WorkerId;
using testing::ElementsAre;
using testing::IsEmpty;

constexpr WorkerId kA{21}, kB{22};
constexpr int kHintBlockSize = 2;

MATCHER_P2(Has, worker, tokens, "") {
  return arg.worker == worker && arg.tokens == tokens;
}

PromptPrefix Prompt(TokenId first, int blocks) {
  std::vector<TokenId> tokens;
  for (int i = 0; i < blocks * kHintBlockSize; ++i) tokens.push_back(first + i);
  PromptPrefix prefix;
  prefix.block_size = kHintBlockSize;
  prefix.names = scheduling::ChainOf("", kHintBlockSize, tokens);
  return prefix;
}

v1::PrefixNews Stored(const PromptPrefix& prompt) {
  v1::PrefixNews news;
  for (const Hash128& name : prompt.names) {
    news.add_stored(name.low);
    news.add_stored(name.high);
  }
  return news;
}

class PrefixHintsTest : public testing::Test {
 protected:
  std::vector<CachedPrompt> Look(PromptPrefix* prompt,
                                 int32_t most_tokens = 1000) {
    const auto cached = hints_.Look(prompt, most_tokens, now_);
    return {cached.begin(), cached.end()};
  }
  void ApplyAll() {
    while (hints_.pending()) hints_.ApplySome();
  }

  metrics::Metrics registry_{metrics::Labels{}};
  PrefixMetrics metrics_{&registry_};
  PrefixHints hints_{PrefixHints::Options{}, &metrics_};
  absl::Time now_ = absl::UnixEpoch();
};

TEST_F(PrefixHintsTest, NewsCountOnceTheyAreApplied) {
  PromptPrefix prompt = Prompt(10, 5);
  EXPECT_TRUE(hints_.Take(3, kA, Stored(prompt)));
  EXPECT_TRUE(hints_.Take(4, kB, Stored(Prompt(10, 2))));
  EXPECT_TRUE(hints_.pending());
  EXPECT_THAT(hints_.ApplySome(), ElementsAre(3, 4));
  EXPECT_FALSE(hints_.pending());
  EXPECT_THAT(hints_.ApplySome(), IsEmpty());
  EXPECT_THAT(Look(&prompt), ElementsAre(Has(kA, 10), Has(kB, 4)));
}

TEST_F(PrefixHintsTest, AtMostSoManyTokens) {
  PromptPrefix prompt = Prompt(10, 5);
  hints_.Take(3, kA, Stored(prompt));
  ApplyAll();
  EXPECT_THAT(Look(&prompt, 9), ElementsAre(Has(kA, 9)));
  PromptPrefix none;
  EXPECT_THAT(Look(&none), IsEmpty());
  EXPECT_THAT(Look(&prompt, 0), IsEmpty());
}

TEST_F(PrefixHintsTest, FirstForgottenThenRemovedThenStored) {
  PromptPrefix old = Prompt(10, 3), prompt = Prompt(50, 3);
  hints_.Take(3, kA, Stored(old));
  v1::PrefixNews news = Stored(prompt);
  news.set_reset(true);
  *news.mutable_removed() = news.stored();
  hints_.Take(3, kA, news);
  ApplyAll();
  EXPECT_THAT(Look(&old), IsEmpty());
  EXPECT_THAT(Look(&prompt), ElementsAre(Has(kA, 6)));
}

TEST_F(PrefixHintsTest, ALookHoldsForAWhile) {
  PromptPrefix prompt = Prompt(10, 5);
  EXPECT_THAT(Look(&prompt), IsEmpty());
  hints_.Take(3, kA, Stored(prompt));
  ApplyAll();
  EXPECT_THAT(Look(&prompt), IsEmpty());
  now_ += absl::Milliseconds(60);
  EXPECT_THAT(Look(&prompt), ElementsAre(Has(kA, 10)));
}

TEST_F(PrefixHintsTest, NoTurnAppliesVeryMuch) {
  for (int i = 0; i < 10; ++i) {
    hints_.Take(i, kA, Stored(Prompt(10000 * i, 4096)));
  }
  int turns = 0;
  std::vector<int> links;
  for (; hints_.pending(); ++turns) {
    const std::vector<int> consumed = hints_.ApplySome();
    EXPECT_LE(consumed.size(), 2u);
    links.insert(links.end(), consumed.begin(), consumed.end());
  }
  EXPECT_GE(turns, 5);
  EXPECT_THAT(links, ElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 8, 9));
}

TEST_F(PrefixHintsTest, WhatALostWorkerSaidIsDropped) {
  PromptPrefix prompt = Prompt(10, 5);
  hints_.Take(3, kA, Stored(prompt));
  ApplyAll();
  hints_.Take(3, kA, Stored(Prompt(10, 7)));
  hints_.Take(4, kB, Stored(Prompt(10, 1)));
  hints_.Forget(kA);
  EXPECT_THAT(hints_.ApplySome(), ElementsAre(4));
  EXPECT_THAT(Look(&prompt), ElementsAre(Has(kB, 2)));
}

TEST_F(PrefixHintsTest, NothingIsKeptOfWhatIsOfNoUse) {
  v1::PrefixNews news;
  news.add_stored(1);
  EXPECT_FALSE(hints_.Take(3, kA, news));
  news.clear_stored();
  news.add_removed(1);
  EXPECT_FALSE(hints_.Take(3, kA, news));
  EXPECT_FALSE(hints_.Take(3, scheduling::kNoWorker, Stored(Prompt(10, 1))));
  PrefixHints off({.enabled = false}, &metrics_);
  EXPECT_FALSE(off.Take(3, kA, Stored(Prompt(10, 1))));
  PromptPrefix prompt = Prompt(10, 1);
  EXPECT_THAT(off.Look(&prompt, 100, now_), IsEmpty());
}

TEST_F(PrefixHintsTest, CountsTokensOfPlacedPrompts) {
  const std::vector<CachedPrompt> cached = {{kA, 30}, {kB, 70}};
  const scheduling::PlacementRequest request{.prefill_tokens = 100,
                                             .cached = cached};
  metrics_.Placed(
      request,
      {.kind = scheduling::PlacementVerdict::Kind::kDecodeOnly, .decode = kA});
  metrics_.Placed(
      request, {.kind = scheduling::PlacementVerdict::Kind::kPrefillAndDecode,
                .prefill = kB,
                .decode = kA});
  metrics_.Placed(
      request, {.kind = scheduling::PlacementVerdict::Kind::kPrefillAndDecode,
                .prefill = WorkerId{5},
                .decode = kA});
  const std::string text = registry_.Text();
  EXPECT_THAT(
      text, testing::HasSubstr("baton_router_prefix_prompt_tokens_total 300"));
  EXPECT_THAT(
      text, testing::HasSubstr(
                "baton_router_prefix_matched_tokens_total{at=\"chosen\"} 100"));
  EXPECT_THAT(text,
              testing::HasSubstr(
                  "baton_router_prefix_matched_tokens_total{at=\"best\"} 210"));
}

}  // namespace
}  // namespace baton::router
