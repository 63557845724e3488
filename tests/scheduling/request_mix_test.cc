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
  RequestMix mix(/*time_constant_seconds=*/10);
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
  RequestMix mix(/*time_constant_seconds=*/30);
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
  RequestMix mix(/*time_constant_seconds=*/1);
  mix.Ended(0, {.prompt_tokens = 1000, .output_tokens = 50});
  EXPECT_EQ(mix.Mean(1e6).weight, 0);
  mix.Ended(1e6, {.prompt_tokens = 10, .output_tokens = 2});
  EXPECT_EQ(mix.Mean(1e6).weight, 1);
  EXPECT_EQ(mix.Mean(1e6).prompt_tokens, 10);
  // A clock that stands still loses nothing.
  EXPECT_EQ(mix.Mean(1e6 - 1).weight, 1);
}

}  // namespace
}  // namespace baton::scheduling
