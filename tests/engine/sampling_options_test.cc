// Bias, forbidden and allowed tokens and the likeliest tokens beside the
// sampled one.
#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/sampling.h"

namespace baton::engine {
namespace {

using scheduling::LogitBias;
using scheduling::SampledToken;
using scheduling::SamplingParams;
using scheduling::TokenLogprob;
using scheduling::TokenMask;
using testing::ElementsAre;
using testing::IsEmpty;

struct Draw {
  SamplingParams params;
  std::vector<TokenId> history;
  int32_t prompt_length = 0;
  std::vector<TokenId> forbidden;
  std::vector<TokenId> allowed;  // none: all
  int32_t top_logprobs = 0;

  SampledToken From(std::vector<float> logits, uint64_t index = 0) const {
    std::optional<TokenMask> mask;
    if (!allowed.empty()) {
      mask.emplace(static_cast<int32_t>(logits.size()), allowed);
    }
    return Sample(absl::MakeSpan(logits), params, history, prompt_length, index,
                  {.forbidden = forbidden,
                   .allowed = mask ? &*mask : nullptr,
                   .top_logprobs = top_logprobs});
  }
  std::map<TokenId, int> Counts(const std::vector<float>& logits,
                                int draws) const {
    std::map<TokenId, int> counts;
    for (int i = 0; i < draws; ++i) ++counts[From(logits, i).token];
    return counts;
  }
};

Draw GreedyDraw() {
  Draw draw;
  draw.params.temperature = 0.0f;
  return draw;
}

std::vector<float> RandomLogits(uint32_t seed, size_t size, float step) {
  std::mt19937 bits(seed);
  std::normal_distribution<float> normal(0.0f, 3.0f);
  std::vector<float> logits(size);
  for (float& x : logits) x = std::round(normal(bits) / step) * step;
  return logits;
}

// All ways to draw, each of which must keep to what is allowed.
std::vector<std::pair<std::string, SamplingParams>> Ways() {
  std::vector<std::pair<std::string, SamplingParams>> ways;
  const auto add = [&](const char* name, auto set) {
    SamplingParams params;
    params.seed = 21;
    set(&params);
    ways.emplace_back(name, params);
  };
  add("greedy", [](SamplingParams* p) { p->temperature = 0; });
  add("all", [](SamplingParams*) {});
  add("cold", [](SamplingParams* p) { p->temperature = 1e-30f; });
  add("hot", [](SamplingParams* p) { p->temperature = 100; });
  add("top_k", [](SamplingParams* p) { p->top_k = 3; });
  add("top_p", [](SamplingParams* p) { p->top_p = 0.99f; });
  add("nearly all", [](SamplingParams* p) { p->top_p = 0.9999999f; });
  add("min_p", [](SamplingParams* p) { p->min_p = 1e-6f; });
  add("top_k and top_p", [](SamplingParams* p) {
    p->top_k = 900;
    p->top_p = 0.9999f;
  });
  return ways;
}

TEST(LogitBiasTest, ForcesAndForbids) {
  const std::vector<float> logits = {1.0f, 5.0f, 4.0f, 0.0f};
  for (const auto& [name, params] : Ways()) {
    if (name == "hot") continue;  // 100 degrees undo a bias of 100
    Draw draw{.params = params};
    draw.params.logit_bias = {{3, 100.0f}};
    EXPECT_THAT(draw.Counts(logits, 200), ElementsAre(std::pair(3, 200)))
        << name;
    draw.params.logit_bias = {{1, -100.0f}, {2, -100.0f}, {3, -100.0f}};
    EXPECT_THAT(draw.Counts(logits, 200), ElementsAre(std::pair(0, 200)))
        << name;
  }
}

TEST(LogitBiasTest, MultipliesTheOdds) {
  Draw draw;
  draw.params.seed = 5;
  draw.params.logit_bias = {{0, std::log(3.0f)}};
  constexpr int kDraws = 20000;
  const auto counts = draw.Counts({0.0f, 0.0f}, kDraws);  // 3 to 1
  const double chi_square = std::pow(counts.at(0) - 15000.0, 2) / 15000 +
                            std::pow(counts.at(1) - 5000.0, 2) / 5000;
  EXPECT_LT(chi_square, 10.83);  // 99.9 %, one degree
}

TEST(LogitBiasTest, ComesBeforePenalties) {
  Draw draw = GreedyDraw();
  draw.history = {0};
  draw.params.repetition_penalty = 2.0f;
  draw.params.logit_bias = {{0, 3.0f}};
  // (1 + 3) / 2, not 1 / 2 + 3.
  EXPECT_EQ(draw.From({1.0f, 3.0f}).token, 1);
  EXPECT_EQ(draw.From({1.0f, 1.9f}).token, 0);
  // The bias decides which way the penalty goes: (1 - 3) * 2.
  draw.params.logit_bias = {{0, -3.0f}};
  EXPECT_EQ(draw.From({1.0f, -3.0f}).token, 1);
  EXPECT_EQ(draw.From({1.0f, -4.5f}).token, 0);
}

TEST(LogitBiasTest, ComesBeforeTruncation) {
  Draw draw;
  draw.params.top_k = 1;
  draw.params.logit_bias = {{1, 2.0f}};
  EXPECT_EQ(draw.From({4.0f, 3.0f}).token, 1);
}

TEST(LogitBiasTest, LogprobIsThatOfTheModel) {
  const std::vector<float> logits = {std::log(0.6f), std::log(0.3f),
                                     std::log(0.1f)};
  Draw draw = GreedyDraw();
  draw.params.logit_bias = {{0, -9.0f}, {2, 9.0f}};
  EXPECT_EQ(draw.From(logits).token, 2);
  EXPECT_NEAR(draw.From(logits).logprob, std::log(0.1), 1e-6);
  // A penalty on the same token, and on another.
  draw.params.frequency_penalty = 0.5f;
  draw.history = {2, 2, 1};
  EXPECT_EQ(draw.From(logits).token, 2);
  EXPECT_NEAR(draw.From(logits).logprob, std::log(0.1), 1e-6);
  draw.params.logit_bias = {{0, -9.0f}};
  EXPECT_EQ(draw.From(logits).token, 1);
  EXPECT_NEAR(draw.From(logits).logprob, std::log(0.3), 1e-6);
}

TEST(LogitBiasTest, StaysFinite) {
  constexpr float kMost = std::numeric_limits<float>::max();
  Draw draw = GreedyDraw();
  draw.params.logit_bias = {{0, 100.0f}, {1, -100.0f}};
  const SampledToken t = draw.From({kMost, -kMost, kMost});
  EXPECT_TRUE(t.ok);
  EXPECT_EQ(t.token, 0);
  draw.params.temperature = 1.0f;
  EXPECT_TRUE(draw.From({kMost, -kMost, kMost}).ok);
}

TEST(ForbiddenTest, NeverComesOut) {
  // Some hundreds likely and unlikely ones; the forbidden ones are the best,
  // the first and the last.
  const std::vector<float> logits = RandomLogits(1, 800, 1e-4f);
  std::vector<TokenId> ranked(logits.size());
  for (size_t i = 0; i < ranked.size(); ++i) ranked[i] = i;
  std::stable_sort(ranked.begin(), ranked.end(),
                   [&](TokenId a, TokenId b) { return logits[a] > logits[b]; });
  std::vector<TokenId> forbidden(ranked.begin(), ranked.begin() + 40);
  forbidden.push_back(0);
  forbidden.push_back(799);
  const std::set<TokenId> never(forbidden.begin(), forbidden.end());
  TokenId best = 0;
  for (TokenId token : ranked) {
    best = token;
    if (never.count(token) == 0) break;
  }
  for (const auto& [name, params] : Ways()) {
    const Draw draw{.params = params, .forbidden = forbidden};
    const auto counts = draw.Counts(logits, 2000);
    for (const auto& [token, count] : counts) {
      EXPECT_EQ(never.count(token), 0u) << name << " gave " << token;
    }
    if (name == "greedy" || name == "cold") {
      EXPECT_THAT(counts, ElementsAre(std::pair(best, 2000))) << name;
    } else {
      EXPECT_GT(counts.size(), 2u) << name;
    }
  }
}

TEST(ForbiddenTest, OnlyOneIsLeft) {
  std::vector<float> logits(1001, 3.0f);
  logits[700] = -60.0f;
  std::vector<TokenId> forbidden;
  for (TokenId token = 0; token < 1001; ++token) {
    if (token != 700) forbidden.push_back(token);
  }
  for (const auto& [name, params] : Ways()) {
    const Draw draw{.params = params, .forbidden = forbidden};
    EXPECT_THAT(draw.Counts(logits, 20), ElementsAre(std::pair(700, 20)))
        << name;
  }
}

TEST(ForbiddenTest, TheRestKeepsItsOdds) {
  Draw draw;
  draw.params.seed = 9;
  draw.forbidden = {1};
  const auto counts =
      draw.Counts({std::log(0.2f), std::log(0.5f), std::log(0.3f)}, 20000);
  const double chi_square = std::pow(counts.at(0) - 8000.0, 2) / 8000 +
                            std::pow(counts.at(2) - 12000.0, 2) / 12000;
  EXPECT_LT(chi_square, 10.83);  // 99.9 %, one degree
}

TEST(ForbiddenTest, NeitherBiasNorPenaltyBringsItBack) {
  Draw draw = GreedyDraw();
  draw.forbidden = {0};
  draw.history = {0, 0};
  draw.params.logit_bias = {{0, 100.0f}};
  draw.params.repetition_penalty = 0.01f;
  draw.params.frequency_penalty = -2.0f;
  EXPECT_EQ(draw.From({5.0f, 1.0f}).token, 1);
  draw.params.temperature = 1.0f;
  EXPECT_THAT(draw.Counts({5.0f, 1.0f}, 100), ElementsAre(std::pair(1, 100)));
}

TEST(ForbiddenTest, LogprobCountsItsProbability) {
  Draw draw = GreedyDraw();
  draw.forbidden = {0};
  EXPECT_NEAR(draw.From({std::log(0.8f), std::log(0.2f)}).logprob,
              std::log(0.2), 1e-6);
}

// What may come out, said the other way round: the same draws.
TEST(AllowedTest, IsAsIfTheOthersWereForbidden) {
  const std::vector<float> logits = RandomLogits(2, 800, 1e-4f);
  Draw allowed, forbidden;
  for (TokenId token = 0; token < 800; ++token) {
    (token % 31 == 5 ? allowed.allowed : forbidden.forbidden).push_back(token);
  }
  for (const auto& [name, params] : Ways()) {
    for (Draw* draw : {&allowed, &forbidden}) {
      draw->params = params;
      draw->params.logit_bias = {{4, 100.0f}, {36, 2.0f}};
      draw->params.repetition_penalty = 1.3f;
      draw->history = {5, 5, 4};
    }
    for (uint64_t i = 0; i < 200; ++i) {
      const SampledToken a = allowed.From(logits, i);
      const SampledToken b = forbidden.From(logits, i);
      EXPECT_EQ(a.token, b.token) << name;
      EXPECT_EQ(a.logprob, b.logprob) << name;
      EXPECT_EQ(a.token % 31, 5) << name;
    }
  }
}

TEST(AllowedTest, OnlyOne) {
  std::vector<float> logits(1001, 3.0f);
  logits[700] = -60.0f;
  for (const auto& [name, params] : Ways()) {
    const Draw draw{.params = params, .allowed = {700}};
    EXPECT_THAT(draw.Counts(logits, 20), ElementsAre(std::pair(700, 20)))
        << name;
  }
}

TEST(AllowedTest, MayBeForbiddenAsWell) {
  Draw draw = GreedyDraw();
  draw.allowed = {0, 2};
  draw.forbidden = {0};
  EXPECT_EQ(draw.From({5.0f, 9.0f, 1.0f}).token, 2);
}

TEST(AllowedDeathTest, NoneIsLeft) {
  Draw draw;
  draw.allowed = {0};
  draw.forbidden = {0};
  EXPECT_DEATH(draw.From({1.0f, 2.0f}), "forbidden");
  // Of another vocabulary.
  const TokenMask mask(3, {0});
  std::vector<float> logits = {1.0f, 2.0f};
  EXPECT_DEATH(Sample(absl::MakeSpan(logits), SamplingParams(), {}, 0, 0,
                      {.allowed = &mask}),
               "Check failed");
}

TEST(ForbiddenDeathTest, Everything) {
  Draw draw;
  draw.forbidden = {0, 1};
  EXPECT_DEATH(draw.From({1.0f, 2.0f}), "forbidden");
  draw.forbidden = {2};
  EXPECT_DEATH(draw.From({1.0f, 2.0f}), "Check failed");
  draw.forbidden = {};
  draw.params.logit_bias = {{2, 1.0f}};
  EXPECT_DEATH(draw.From({1.0f, 2.0f}), "Check failed");
}

// By sorting everything, in double.
std::vector<TokenLogprob> SlowTop(const std::vector<float>& logits,
                                  int32_t count) {
  double total = 0.0;
  for (const float x : logits) total += std::exp(double{x});
  std::vector<TokenLogprob> all;
  for (size_t i = 0; i < logits.size(); ++i) {
    all.push_back({static_cast<TokenId>(i),
                   static_cast<float>(logits[i] - std::log(total))});
  }
  std::stable_sort(all.begin(), all.end(), [&](const auto& a, const auto& b) {
    return logits[a.token] > logits[b.token];
  });
  all.resize(std::min(all.size(), static_cast<size_t>(count)));
  return all;
}

TEST(TopLogprobsTest, AreTheLikeliestInOrder) {
  for (const size_t size : {1, 3, 4, 5, 19, 20, 21, 100, 1003, 5000}) {
    // In steps of 1 there are many ties.
    for (const float step : {0.001f, 1.0f}) {
      const std::vector<float> logits =
          RandomLogits(static_cast<uint32_t>(size), size, step);
      for (const int32_t count : {0, 1, 2, 5, 20}) {
        SCOPED_TRACE(testing::Message()
                     << count << " of " << size << ", step " << step);
        Draw draw;
        draw.top_logprobs = count;
        const SampledToken t = draw.From(logits);
        const std::vector<TokenLogprob> expected = SlowTop(logits, count);
        ASSERT_EQ(t.top.size(), expected.size());
        for (size_t i = 0; i < expected.size(); ++i) {
          EXPECT_EQ(t.top[i].token, expected[i].token) << i;
          EXPECT_NEAR(t.top[i].logprob, expected[i].logprob, 1e-5) << i;
        }
      }
    }
  }
}

TEST(TopLogprobsTest, TiesGoToTheLowerId) {
  Draw draw = GreedyDraw();
  draw.top_logprobs = 4;
  const SampledToken t = draw.From({0.0f, 2.0f, 1.0f, 2.0f, 1.0f, 1.0f});
  std::vector<TokenId> ids;
  for (const TokenLogprob& top : t.top) ids.push_back(top.token);
  EXPECT_THAT(ids, ElementsAre(1, 3, 2, 4));
}

TEST(TopLogprobsTest, AreTheModelsOwnHoweverTheTokenIsDrawn) {
  const std::vector<float> logits = RandomLogits(3, 300, 0.01f);
  Draw plain = GreedyDraw();
  plain.top_logprobs = 8;
  const std::vector<TokenLogprob> expected = plain.From(logits).top;
  ASSERT_EQ(expected.size(), 8u);
  int32_t chosen_in_top = 0;
  for (const auto& [name, params] : Ways()) {
    Draw draw{.params = params, .top_logprobs = 8};
    draw.history = {expected[0].token, expected[1].token, 7};
    draw.prompt_length = 1;
    draw.forbidden = {expected[2].token};
    draw.params.repetition_penalty = 1.5f;
    draw.params.presence_penalty = 1.0f;
    draw.params.logit_bias = {{expected[3].token, 4.0f}};
    for (uint64_t i = 0; i < 20; ++i) {
      const SampledToken t = draw.From(logits, i);
      EXPECT_EQ(t.top, expected) << name;
      // Where the chosen one is among them, it has the very same number.
      for (const TokenLogprob& top : t.top) {
        if (top.token != t.token) continue;
        EXPECT_EQ(top.logprob, t.logprob) << name;
        ++chosen_in_top;
      }
    }
  }
  EXPECT_GT(chosen_in_top, 50);
}

TEST(TopLogprobsTest, AskingForThemDoesNotChangeTheToken) {
  const std::vector<float> logits = RandomLogits(4, 300, 0.01f);
  for (const auto& [name, params] : Ways()) {
    Draw without{.params = params};
    Draw with{.params = params, .top_logprobs = 20};
    for (uint64_t i = 0; i < 50; ++i) {
      const SampledToken a = without.From(logits, i);
      const SampledToken b = with.From(logits, i);
      EXPECT_EQ(a.token, b.token) << name;
      EXPECT_EQ(a.logprob, b.logprob) << name;
      EXPECT_THAT(a.top, IsEmpty());
    }
  }
}

TEST(TopLogprobsTest, LogitsThatAreNotFiniteHaveNone) {
  Draw draw;
  draw.top_logprobs = 2;
  const SampledToken t =
      draw.From({1.0f, std::numeric_limits<float>::quiet_NaN(), 2.0f});
  EXPECT_FALSE(t.ok);
  EXPECT_THAT(t.top, IsEmpty());
}

}  // namespace
}  // namespace baton::engine
