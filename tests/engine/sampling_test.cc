#include "engine/sampling.h"

#include <cmath>
#include <limits>
#include <map>
#include <random>
#include <set>
#include <vector>

#include <gtest/gtest.h>

namespace baton::engine {
namespace {

using scheduling::SampledToken;
using scheduling::SamplingParams;

SamplingParams Greedy() {
  SamplingParams params;
  params.temperature = 0.0f;
  return params;
}

SampledToken SampleOnce(std::vector<float> logits, const SamplingParams& params,
                        uint64_t token_index = 0,
                        const std::vector<TokenId>& history = {},
                        int32_t prompt_length = 0) {
  return Sample(absl::MakeSpan(logits), params, history, prompt_length,
                token_index);
}

std::map<TokenId, int> Histogram(const std::vector<float>& logits,
                                 const SamplingParams& params, int draws) {
  std::map<TokenId, int> counts;
  for (int i = 0; i < draws; ++i) {
    const SampledToken t = SampleOnce(logits, params, i);
    EXPECT_TRUE(t.ok);
    ++counts[t.token];
  }
  return counts;
}

std::set<TokenId> Support(const std::vector<float>& logits,
                          const SamplingParams& params, int draws = 4000) {
  std::set<TokenId> support;
  for (const auto& [token, count] : Histogram(logits, params, draws)) {
    support.insert(token);
  }
  return support;
}

// Logits of these probabilities.
std::vector<float> Logits(const std::vector<double>& probabilities) {
  std::vector<float> logits;
  for (const double p : probabilities) {
    logits.push_back(static_cast<float>(std::log(p)));
  }
  return logits;
}

// Pearson's statistic; the seeds are fixed, so a sound implementation either
// passes always or never.
double ChiSquare(const std::map<TokenId, int>& counts,
                 const std::vector<double>& probabilities, int draws) {
  double chi_square = 0.0;
  for (size_t i = 0; i < probabilities.size(); ++i) {
    const auto it = counts.find(static_cast<TokenId>(i));
    const double count = it == counts.end() ? 0 : it->second;
    const double expected = probabilities[i] * draws;
    chi_square += (count - expected) * (count - expected) / expected;
  }
  return chi_square;
}

TEST(SamplingTest, GreedyTakesTheHighestAndTheLowestIdOnATie) {
  EXPECT_EQ(SampleOnce({1.0f, 3.0f, 2.0f}, Greedy()).token, 1);
  EXPECT_EQ(SampleOnce({1.0f, 3.0f, 3.0f, 3.0f}, Greedy()).token, 1);
  EXPECT_EQ(SampleOnce({0.0f, -0.0f}, Greedy()).token, 0);
  EXPECT_EQ(SampleOnce({-0.0f, 0.0f}, Greedy()).token, 0);
  std::vector<float> many(1003, -5.0f);
  many[1002] = -4.0f;
  EXPECT_EQ(SampleOnce(many, Greedy()).token, 1002);
}

TEST(SamplingTest, LogprobIsThatOfTheRawDistribution) {
  const std::vector<float> logits = Logits({0.1, 0.6, 0.3});
  EXPECT_NEAR(SampleOnce(logits, Greedy()).logprob, std::log(0.6), 1e-6);
  // A shift of all logits changes nothing.
  std::vector<float> shifted = logits;
  for (float& x : shifted) x += 40.0f;
  EXPECT_NEAR(SampleOnce(shifted, Greedy()).logprob, std::log(0.6), 1e-5);
  // Neither do temperature, truncation or a penalty on the token.
  SamplingParams params = Greedy();
  params.repetition_penalty = 1.01f;
  params.frequency_penalty = 0.01f;
  const SampledToken t = SampleOnce(logits, params, 1, {1}, 0);
  EXPECT_EQ(t.token, 1);
  EXPECT_NEAR(t.logprob, std::log(0.6), 1e-6);
  params = SamplingParams();
  params.temperature = 0.2f;
  params.top_k = 1;
  EXPECT_NEAR(SampleOnce(logits, params).logprob, std::log(0.6), 1e-6);
}

TEST(SamplingTest, LogprobOfALargeVocabulary) {
  std::mt19937 bits(1);
  std::normal_distribution<float> normal(0.0f, 3.0f);
  std::vector<float> logits(150001);
  double sum = 0.0;
  for (float& x : logits) {
    x = normal(bits);
    sum += std::exp(double{x});
  }
  const SampledToken t = SampleOnce(logits, Greedy());
  EXPECT_NEAR(t.logprob, logits[t.token] - std::log(sum), 1e-5);
}

TEST(SamplingTest, NonFiniteLogitsAreRefused) {
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(),
                          std::numeric_limits<float>::infinity(),
                          -std::numeric_limits<float>::infinity()}) {
    for (size_t size : {1, 4, 5, 7}) {
      for (size_t at = 0; at < size; ++at) {
        std::vector<float> logits(size, 1.0f);
        logits[at] = bad;
        EXPECT_FALSE(SampleOnce(logits, Greedy()).ok) << at;
        EXPECT_FALSE(SampleOnce(logits, SamplingParams()).ok) << at;
      }
    }
  }
  EXPECT_TRUE(
      SampleOnce({std::numeric_limits<float>::max(), 1.0f}, Greedy()).ok);
}

TEST(SamplingTest, DrawsDependOnSeedAndTokenIndexAlone) {
  const std::vector<float> logits(100, 0.0f);
  SamplingParams params;
  params.seed = 5;
  std::vector<TokenId> first, again, other_seed;
  for (uint64_t i = 0; i < 50; ++i) {
    first.push_back(SampleOnce(logits, params, i).token);
  }
  for (uint64_t i = 50; i-- > 0;) {
    again.insert(again.begin(), SampleOnce(logits, params, i).token);
  }
  params.seed = 6;
  for (uint64_t i = 0; i < 50; ++i) {
    other_seed.push_back(SampleOnce(logits, params, i).token);
  }
  EXPECT_EQ(first, again);
  EXPECT_NE(first, other_seed);
}

// The critical values are those of 99.9 % for the degrees of freedom.
TEST(SamplingTest, DrawsFollowTheSoftmax) {
  const std::vector<double> p = {0.05, 0.4, 0.1, 0.25, 0.2};
  SamplingParams params;
  params.seed = 11;
  const auto counts = Histogram(Logits(p), params, 20000);
  EXPECT_LT(ChiSquare(counts, p, 20000), 18.47);  // 4 degrees
}

TEST(SamplingTest, DrawsFollowTheSoftmaxAcrossChunks) {
  // Weight in far apart places, none in between.
  std::vector<float> logits(5000, -200.0f);
  const std::map<TokenId, double> p = {
      {3, 0.1}, {511, 0.2}, {512, 0.3}, {2600, 0.15}, {4999, 0.25}};
  for (const auto& [token, probability] : p) {
    logits[token] = static_cast<float>(std::log(probability));
  }
  SamplingParams params;
  params.seed = 12;
  const auto counts = Histogram(logits, params, 5000);
  double chi_square = 0.0;
  int drawn = 0;
  for (const auto& [token, probability] : p) {
    const double expected = probability * 5000;
    ASSERT_TRUE(counts.count(token)) << token;
    drawn += counts.at(token);
    chi_square += std::pow(counts.at(token) - expected, 2) / expected;
  }
  EXPECT_EQ(drawn, 5000);
  EXPECT_LT(chi_square, 18.47);  // 4 degrees
}

TEST(SamplingTest, TemperatureSharpensAndFlattens) {
  const std::vector<double> p = {0.5, 0.3, 0.2};
  for (const float temperature : {0.5f, 2.0f}) {
    SamplingParams params;
    params.seed = 13;
    params.temperature = temperature;
    std::vector<double> scaled;
    double sum = 0.0;
    for (const double x : p) {
      scaled.push_back(std::pow(x, 1.0 / temperature));
      sum += scaled.back();
    }
    for (double& x : scaled) x /= sum;
    const auto counts = Histogram(Logits(p), params, 20000);
    EXPECT_LT(ChiSquare(counts, scaled, 20000), 13.82);  // 2 degrees
  }
}

TEST(SamplingTest, TinyTemperatureIsGreedy) {
  SamplingParams params;
  params.temperature = 1e-30f;
  EXPECT_EQ(Support({1.0f, 1.001f, 0.5f}, params, 100), (std::set<TokenId>{1}));
}

TEST(SamplingTest, TopKKeepsTheKHighest) {
  const std::vector<float> logits = Logits({0.1, 0.3, 0.05, 0.35, 0.2});
  SamplingParams params;
  params.top_k = 1;
  EXPECT_EQ(Support(logits, params), (std::set<TokenId>{3}));
  params.top_k = 3;
  EXPECT_EQ(Support(logits, params), (std::set<TokenId>{1, 3, 4}));
  params.top_k = 5;
  EXPECT_EQ(Support(logits, params), (std::set<TokenId>{0, 1, 2, 3, 4}));
  params.top_k = 1000;
  EXPECT_EQ(Support(logits, params), (std::set<TokenId>{0, 1, 2, 3, 4}));
}

TEST(SamplingTest, TopKRenormalizes) {
  SamplingParams params;
  params.seed = 14;
  params.top_k = 2;
  const auto counts = Histogram(Logits({0.2, 0.3, 0.5}), params, 20000);
  const double chi_square = std::pow(counts.at(1) - 7500.0, 2) / 7500.0 +
                            std::pow(counts.at(2) - 12500.0, 2) / 12500.0;
  EXPECT_LT(chi_square, 10.83);  // 1 degree
}

TEST(SamplingTest, TiesAtTheCutGoToTheLowerId) {
  SamplingParams params;
  params.top_k = 2;
  EXPECT_EQ(Support({1.0f, 2.0f, 1.0f, 1.0f, 0.0f}, params),
            (std::set<TokenId>{0, 1}));
  params.top_k = 3;
  EXPECT_EQ(Support(std::vector<float>(9, 1.0f), params),
            (std::set<TokenId>{0, 1, 2}));
  params.top_k = 0;
  params.top_p = 0.3f;  // of nine ninths, three are 0.33
  EXPECT_EQ(Support(std::vector<float>(9, 1.0f), params),
            (std::set<TokenId>{0, 1, 2}));
}

TEST(SamplingTest, TopPKeepsTheSmallestSetThatReachesP) {
  const std::vector<float> logits = Logits({0.1, 0.3, 0.05, 0.35, 0.2});
  SamplingParams params;
  params.top_p = 0.01f;
  EXPECT_EQ(Support(logits, params), (std::set<TokenId>{3}));
  params.top_p = 0.34f;
  EXPECT_EQ(Support(logits, params), (std::set<TokenId>{3}));
  params.top_p = 0.36f;
  EXPECT_EQ(Support(logits, params), (std::set<TokenId>{1, 3}));
  params.top_p = 0.84f;
  EXPECT_EQ(Support(logits, params), (std::set<TokenId>{1, 3, 4}));
  params.top_p = 0.94f;
  EXPECT_EQ(Support(logits, params), (std::set<TokenId>{0, 1, 3, 4}));
  params.top_p = 0.96f;
  EXPECT_EQ(Support(logits, params), (std::set<TokenId>{0, 1, 2, 3, 4}));
}

// A vocabulary whose weight lies deep below the first token: the candidates
// must be looked for further down.
TEST(SamplingTest, TopPOfALongTail) {
  std::vector<float> logits(2000, -6.0f);
  logits[7] = 0.0f;
  // 1 + 1999 * exp(-6) = 5.955; 0.5 of it needs 1 and 799 of the tail.
  SamplingParams params;
  params.top_p = 0.5f;
  const std::set<TokenId> support = Support(logits, params, 30000);
  EXPECT_TRUE(support.count(7));
  EXPECT_LE(*support.rbegin(), 800);
  EXPECT_GE(support.size(), 790u);
}

TEST(SamplingTest, TopPIsOfWhatTopKLeft) {
  // After top-k: 5/8 and 3/8.
  const std::vector<float> logits = Logits({0.5, 0.3, 0.2});
  SamplingParams params;
  params.top_k = 2;
  params.top_p = 0.6f;
  EXPECT_EQ(Support(logits, params), (std::set<TokenId>{0}));
  params.top_p = 0.65f;
  EXPECT_EQ(Support(logits, params), (std::set<TokenId>{0, 1}));
}

TEST(SamplingTest, MinPComparesWithTheMostLikely) {
  const std::vector<float> logits = Logits({0.1, 0.3, 0.05, 0.35, 0.2});
  SamplingParams params;
  params.min_p = 1.0f;
  EXPECT_EQ(Support(logits, params), (std::set<TokenId>{3}));
  params.min_p = 0.56f;  // 0.196
  EXPECT_EQ(Support(logits, params), (std::set<TokenId>{1, 3, 4}));
  params.min_p = 0.58f;  // 0.203
  EXPECT_EQ(Support(logits, params), (std::set<TokenId>{1, 3}));
  params.top_p = 0.3f;
  params.min_p = 0.01f;
  EXPECT_EQ(Support(logits, params), (std::set<TokenId>{3}));
  params.top_p = 1.0f;
  params.top_k = 3;
  params.min_p = 0.8f;  // 0.28
  EXPECT_EQ(Support(logits, params), (std::set<TokenId>{1, 3}));
}

TEST(SamplingTest, RepetitionPenaltyDividesPositiveMultipliesNegative) {
  SamplingParams params = Greedy();
  params.repetition_penalty = 2.0f;
  // 4 becomes 2: token 1 wins. Prompt tokens count.
  EXPECT_EQ(SampleOnce({4.0f, 3.0f}, params, 0, {0}, 1).token, 1);
  EXPECT_EQ(SampleOnce({4.0f, 1.9f}, params, 0, {0}, 1).token, 0);
  // -1 becomes -2, once however often it was seen.
  EXPECT_EQ(SampleOnce({-1.0f, -1.9f}, params, 0, {0, 0, 0}, 1).token, 1);
  EXPECT_EQ(SampleOnce({-1.0f, -2.1f}, params, 0, {0, 0, 0}, 1).token, 0);
  params.repetition_penalty = 0.5f;  // rewards
  EXPECT_EQ(SampleOnce({3.0f, 4.0f}, params, 0, {0}, 0).token, 0);
}

TEST(SamplingTest, PresenceAndFrequencyCountTheOutputOnly) {
  SamplingParams params = Greedy();
  params.presence_penalty = 1.0f;
  const std::vector<float> logits = {4.0f, 3.5f};
  EXPECT_EQ(SampleOnce(logits, params, 0, {0, 0}, 2).token, 0);
  EXPECT_EQ(SampleOnce(logits, params, 1, {0, 0}, 1).token, 1);
  params.presence_penalty = 0.4f;
  EXPECT_EQ(SampleOnce(logits, params, 3, {0, 0, 0}, 0).token, 0);
  params.presence_penalty = 0.0f;
  params.frequency_penalty = 0.2f;
  EXPECT_EQ(SampleOnce(logits, params, 2, {0, 0}, 0).token, 0);
  EXPECT_EQ(SampleOnce(logits, params, 3, {0, 0, 0}, 0).token, 1);
  params.frequency_penalty = -2.0f;
  EXPECT_EQ(SampleOnce({0.0f, 1.0f}, params, 1, {0}, 0).token, 0);
}

TEST(SamplingTest, ExtremePenaltiesStayFinite) {
  SamplingParams params = Greedy();
  params.repetition_penalty = 1e-38f;
  const SampledToken t = SampleOnce({1e30f, 1e30f, 0.0f}, params, 0, {1, 2}, 2);
  EXPECT_TRUE(t.ok);
  EXPECT_EQ(t.token, 1);
  params.temperature = 1.0f;
  EXPECT_EQ(SampleOnce({1e30f, 1e30f, 0.0f}, params, 0, {1, 2}, 2).token, 1);
}

TEST(SamplingTest, PenaltiesComeBeforeTruncation) {
  SamplingParams params;
  params.top_k = 1;
  params.repetition_penalty = 10.0f;
  EXPECT_EQ(SampleOnce({4.0f, 3.0f}, params, 0, {0}, 1).token, 1);
}

}  // namespace
}  // namespace baton::engine
