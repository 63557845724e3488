#include "scheduling/request_mix.h"

#include <cmath>
#include <random>
#include <vector>

#include <gtest/gtest.h>

namespace baton::scheduling {
namespace {

TEST(RequestMixTest, KnowsNothingAtFirst) {
  const RequestMean mean = RequestMix().Mean(5);
  EXPECT_EQ(mean.weight, 0);
  EXPECT_EQ(mean.computed_tokens, 0);
  EXPECT_EQ(mean.stream_context, 0);
  EXPECT_EQ(mean.itl_target_seconds, 0);
}

TEST(RequestMixTest, MeansAreThoseOfTheRequests) {
  RequestMix mix;
  mix.Ended(7, {.computed_tokens = 100,
                .prompt_tokens = 300,
                .output_tokens = 10,
                .itl_target_seconds = 0.05});
  mix.Ended(
      7, {.computed_tokens = 200, .prompt_tokens = 200, .output_tokens = 30});
  const RequestMean mean = mix.Mean(7);
  EXPECT_DOUBLE_EQ(mean.weight, 2);
  EXPECT_DOUBLE_EQ(mean.computed_tokens, 150);
  EXPECT_DOUBLE_EQ(mean.prompt_tokens, 250);
  EXPECT_DOUBLE_EQ(mean.output_tokens, 20);
  // 201 + ... + 300, and 1 + ... + 200.
  EXPECT_DOUBLE_EQ(mean.prompt_context, (25'050 + 20'100) / 2.0);
  // 10 tokens that read 305 positions on average, 30 that read 215.
  EXPECT_DOUBLE_EQ(mean.stream_context, (3'050 + 6'450) / 40.0);
  EXPECT_DOUBLE_EQ(mean.final_context, (3'100 + 6'900) / 40.0);
  // Of the one that has a target.
  EXPECT_DOUBLE_EQ(mean.itl_target_seconds, 0.05);
}

TEST(RequestMixTest, ForgetsByTimeAndNotByCount) {
  RequestMix mix(/*short_seconds=*/10, /*long_seconds=*/10);
  for (int i = 0; i < 100; ++i) {
    mix.Ended(0, {.prompt_tokens = 1000, .output_tokens = 1});
  }
  mix.Ended(100, {.prompt_tokens = 10, .output_tokens = 1});
  // Ten time constants later, one request outweighs a hundred.
  const double left = 100 * std::exp(-10);
  const RequestMean mean = mix.Mean(110);
  EXPECT_NEAR(mean.weight, (1 + left) * std::exp(-1), 1e-12);
  EXPECT_NEAR(mean.prompt_tokens, (10 + 1000 * left) / (1 + left), 1e-9);
}

TEST(RequestMixTest, IsTheWeightedMeanAtAnyTime) {
  std::mt19937_64 random(3);
  RequestMix mix(/*short_seconds=*/30, /*long_seconds=*/30);
  std::vector<std::pair<double, EndedRequest>> ended;
  double now = 0;
  for (int i = 0; i < 300; ++i) {
    now += static_cast<double>(random() % 1000) / 1000;
    EndedRequest request;
    request.prompt_tokens = static_cast<int32_t>(random() % 1000);
    request.computed_tokens =
        static_cast<int32_t>(random() % (request.prompt_tokens + 1));
    request.output_tokens = static_cast<int32_t>(random() % 100);
    request.itl_target_seconds = static_cast<double>(random() % 3) * 0.02;
    mix.Ended(now, request);
    ended.emplace_back(now, request);
  }
  now += 12;
  double weight = 0;
  double computed = 0;
  double output = 0;
  double context = 0;
  double targets = 0;
  double target_weight = 0;
  for (const auto& [at, request] : ended) {
    const double part = std::exp((at - now) / 30);
    weight += part;
    computed += part * request.computed_tokens;
    output += part * request.output_tokens;
    context += part * request.output_tokens *
               (request.prompt_tokens + 0.5 * request.output_tokens);
    targets += part * request.itl_target_seconds;
    if (request.itl_target_seconds > 0) target_weight += part;
  }
  const RequestMean mean = mix.Mean(now);
  EXPECT_NEAR(mean.weight, weight, 1e-9 * weight);
  EXPECT_NEAR(mean.computed_tokens, computed / weight, 1e-6);
  EXPECT_NEAR(mean.output_tokens, output / weight, 1e-6);
  EXPECT_NEAR(mean.stream_context, context / output, 1e-6);
  EXPECT_NEAR(mean.itl_target_seconds, targets / target_weight, 1e-9);
}

TEST(RequestMixTest, AfterVeryLongItBeginsAnew) {
  RequestMix mix(/*short_seconds=*/1, /*long_seconds=*/1);
  mix.Ended(0, {.prompt_tokens = 1000, .output_tokens = 50});
  EXPECT_EQ(mix.Mean(1e6).weight, 0);
  mix.Ended(1e6, {.prompt_tokens = 10, .output_tokens = 2});
  EXPECT_EQ(mix.Mean(1e6).weight, 1);
  EXPECT_EQ(mix.Mean(1e6).prompt_tokens, 10);
  // A clock that stands still loses nothing.
  EXPECT_EQ(mix.Mean(1e6 - 1).weight, 1);
}

TEST(RequestMixTest, PromptsCountWhenTheyArePlaced) {
  RequestMix mix;
  mix.Ended(0, {.prompt_tokens = 100, .output_tokens = 10});
  mix.Began(0, {.computed_tokens = 200,
                .prompt_tokens = 300,
                .itl_target_seconds = 0.1});
  EXPECT_DOUBLE_EQ(mix.Mean(0).prompt_tokens, 200);
  EXPECT_DOUBLE_EQ(mix.Mean(0).weight, 1);
  // Not again at the end.
  mix.Ended(0, {.computed_tokens = 200,
                .prompt_tokens = 300,
                .output_tokens = 20,
                .itl_target_seconds = 0.1,
                .begun = true});
  EXPECT_DOUBLE_EQ(mix.Mean(0).prompt_tokens, 200);
  EXPECT_DOUBLE_EQ(mix.Mean(0).computed_tokens, 100);
  EXPECT_DOUBLE_EQ(mix.Mean(0).output_tokens, 15);
  EXPECT_DOUBLE_EQ(mix.Mean(0).itl_target_seconds, 0.1);
  EXPECT_DOUBLE_EQ(mix.Mean(0).weight, 2);
}

TEST(RequestMixTest, AnswersThatRunCountAsFarAsTheyGot) {
  // Three ended after 4 tokens, and one has 8 and runs: a quarter gets beyond
  // 4, and all of these as far as anyone did.
  RequestMix mix;
  for (int i = 0; i < 3; ++i) mix.Ended(0, {.output_tokens = 4});
  mix.Produced(0, 0, 0, 8);
  EXPECT_DOUBLE_EQ(mix.Mean(0).output_tokens, (3 * 4 + 8) / 4.0);
  // Another one that is at 2 says nothing of what comes later: of four that
  // were at 4, three ended there.
  mix.Produced(0, 0, 0, 2);
  EXPECT_DOUBLE_EQ(mix.Mean(0).output_tokens, 4 + 0.25 * 4);
  // In parts, it is the same.
  mix.Produced(0, 0, 8, 9);
  mix.Produced(0, 0, 9, 12);
  mix.Ended(0, {.output_tokens = 12, .told_tokens = 12});
  EXPECT_DOUBLE_EQ(mix.Mean(0).output_tokens, 4 + 0.25 * 8);
  // Positions that the tokens read: 2, 2, 2, 6 and so on.
  EXPECT_NEAR(mix.Mean(0).stream_context,
              (3 * 4 * 2 + 8 * 4 + 2 * 1 + 1 * 8.5 + 3 * 10.5) / 26, 1e-9);
}

// Told in parts while they run, all at their ends, or some of each.
TEST(RequestMixTest, TheMeanIsThatOfAllWhenAllHaveEnded) {
  std::mt19937_64 random(8);
  RequestMix mix(1e9, 1e9);
  double tokens = 0;
  for (int i = 0; i < 500; ++i) {
    const auto output = static_cast<int32_t>(random() % 3000);
    tokens += output;
    int32_t told = 0;
    while (random() % 3 != 0) {
      const auto more =
          told + static_cast<int32_t>(random() % (output - told + 1));
      mix.Produced(1, 7, told, more);
      told = more;
    }
    mix.Ended(
        2, {.prompt_tokens = 7, .output_tokens = output, .told_tokens = told});
  }
  EXPECT_NEAR(mix.Mean(2).output_tokens, tokens / 500, 1e-6 * tokens / 500);
}

TEST(RequestMixTest, LongAnswersAreKnownBeforeTheyEnd) {
  // A minute of short answers, ten a second; then long ones only.
  RequestMix mix;
  double now = 0;
  for (; now < 60; now += 0.1) {
    mix.Ended(now, {.prompt_tokens = 2000, .output_tokens = 30});
  }
  std::vector<int32_t> tokens;
  for (int second = 0; second < 20; ++second, now += 1) {
    for (int i = 0; i < 10; ++i) {
      mix.Began(now, {.computed_tokens = 200, .prompt_tokens = 200});
      tokens.push_back(0);
    }
    for (int32_t& so_far : tokens) {
      mix.Produced(now, 200, so_far, so_far + 25);
      so_far += 25;
    }
  }
  const RequestMean mean = mix.Mean(now);
  // None of them has ended.
  EXPECT_LT(mean.prompt_tokens, 500);
  EXPECT_GT(mean.output_tokens, 250);
  EXPECT_LE(mean.output_tokens, 500);
}

TEST(RequestMixTest, OfFewRequestsItKeepsMore) {
  RequestMix mix(/*short_seconds=*/10, /*long_seconds=*/60);
  // Three in ten seconds: too few to forget the others so soon.
  for (double now = 0; now < 100; now += 4) {
    mix.Ended(now, {.prompt_tokens = now < 50 ? 100 : 1000});
  }
  double weight = 0;
  double prompt = 0;
  for (double now = 0; now < 100; now += 4) {
    weight += std::exp((now - 96) / 60);
    prompt += std::exp((now - 96) / 60) * (now < 50 ? 100 : 1000);
  }
  EXPECT_NEAR(mix.Mean(96).weight, weight, 1e-9);
  EXPECT_NEAR(mix.Mean(96).prompt_tokens, prompt / weight, 1e-6);
}

TEST(RequestMixTest, OfManyItTakesTheLatestWhereTheyHaveBecomeOthers) {
  const auto mean_of = [](int32_t then) {
    RequestMix mix(/*short_seconds=*/10, /*long_seconds=*/60);
    for (int i = 0; i < 1200; ++i) {
      const int32_t prompt = i < 900 ? 1000 : then;
      mix.Ended(0.1 * i, {.computed_tokens = prompt, .prompt_tokens = prompt});
    }
    return mix.Mean(119.9).prompt_tokens;
  };
  // 30 seconds of them: 0.95 by the shorter memory, 0.45 by the longer one.
  EXPECT_NEAR(mean_of(2000), 1950, 5);
  EXPECT_NEAR(mean_of(1100), 1045, 5);
}

}  // namespace
}  // namespace baton::scheduling
