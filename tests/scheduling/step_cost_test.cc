#include "scheduling/step_cost.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include <gtest/gtest.h>

namespace baton::scheduling {
namespace {

constexpr StepCost kTrue = {.fixed = 0.004,
                            .per_token = 0.0011,
                            .per_context_token = 2e-7,
                            .per_sequence = 0.0002,
                            .per_prompt_context_token = 5e-8};

// All of a prompt in a step, or the last of it, of which a token is sampled.
StepShape Prompt(int64_t tokens) {
  StepShape shape = ChunkShape(0, tokens);
  shape.sequences = 1;
  return shape;
}

// Steps as a worker has them: decode steps of some streams, chunks, both.
StepShape RandomShape(std::mt19937* random) {
  const auto draw = [&](int most) {
    return static_cast<int64_t>((*random)() % static_cast<unsigned>(most));
  };
  StepShape shape;
  const int64_t streams = draw(33);
  for (int64_t i = 0; i < streams; ++i) {
    shape.tokens += 1;
    shape.context_tokens += ContextTokens(draw(2000), 1);
  }
  shape.sequences = streams;
  if (streams == 0 || draw(3) == 0) {
    const int64_t chunk = 1 + draw(512);
    shape += ChunkShape(draw(4000), chunk);
    shape.sequences += 1;
  }
  return shape;
}

TEST(StepCostTest, CountsWhatAttentionReads) {
  EXPECT_EQ(ContextTokens(0, 4), 1 + 2 + 3 + 4);
  EXPECT_EQ(ContextTokens(10, 1), 11);
  EXPECT_EQ(ContextTokens(10, 3), 11 + 12 + 13);
  EXPECT_EQ(ContextTokens(7, 0), 0);
}

TEST(StepCostTest, ShapeOfAPlan) {
  const std::vector<TokenId> tokens = {1, 2, 3};
  StepPlan plan;
  plan.sequences.resize(2);
  plan.sequences[0].tokens = tokens;
  plan.sequences[0].first_position = 10;
  plan.sequences[1].tokens = absl::MakeSpan(tokens).subspan(0, 1);
  plan.sequences[1].first_position = 4;
  plan.sequences[1].sample = true;
  const StepShape shape = ShapeOf(plan);
  EXPECT_EQ(shape.tokens, 4);
  EXPECT_EQ(shape.context_tokens, 5);
  EXPECT_EQ(shape.prompt_context_tokens, 11 + 12 + 13);
  EXPECT_EQ(shape.sequences, 1);
}

TEST(StepCostTest, APromptInChunksIsItsSteps) {
  const double chunked = kTrue.PrefillSeconds(100, 1000, 400);
  double steps = 0;
  for (const auto& [at, tokens] : std::vector<std::pair<int64_t, int64_t>>{
           {100, 400}, {500, 400}, {900, 200}}) {
    steps += kTrue.Seconds(ChunkShape(at, tokens));
  }
  EXPECT_NEAR(chunked, steps + kTrue.per_sequence, 1e-12);
  EXPECT_EQ(kTrue.PrefillSeconds(100, 0, 400), 0);
}

TEST(StepCostModelTest, FindsTheTermsInNoise) {
  std::mt19937 random(1);
  StepCostModel model;
  for (int i = 0; i < 500; ++i) {
    const StepShape shape = RandomShape(&random);
    const double noise =
        1 + (static_cast<double>(random() % 1000) / 1000 - 0.5) * 0.1;
    model.Observe(shape, kTrue.Seconds(shape) * noise);
  }
  EXPECT_LT(model.error(), 0.08);
  for (int i = 0; i < 100; ++i) {
    const StepShape shape = RandomShape(&random);
    const double seconds = kTrue.Seconds(shape);
    EXPECT_NEAR(model.cost().Seconds(shape) / seconds, 1, 0.1)
        << shape.tokens << " " << shape.context_tokens << " "
        << shape.prompt_context_tokens;
  }
}

// Most steps are short and some are long, as where a worker shares its CPUs: a
// queue waits for their sum.
TEST(StepCostModelTest, IsTheMeanOfStepsThatDiffer) {
  std::mt19937 random(5);
  std::lognormal_distribution<double> noise(-0.08, 0.4);  // of mean 1
  StepCostModel model;
  double predicted = 0;
  double measured = 0;
  for (int i = 0; i < 4000; ++i) {
    const StepShape shape = RandomShape(&random);
    const double seconds = kTrue.Seconds(shape) * noise(random);
    if (i >= 500) {
      predicted += model.cost().Seconds(shape);
      measured += seconds;
    }
    model.Observe(shape, seconds);
  }
  EXPECT_NEAR(predicted / measured, 1, 0.05);
}

// A machine that stood still for once has not become slower.
TEST(StepCostModelTest, AStandstillIsForgottenSoon) {
  std::mt19937 random(6);
  StepCostModel model;
  const auto step = [&](double factor) {
    const StepShape shape = RandomShape(&random);
    model.Observe(shape, factor * kTrue.Seconds(shape));
  };
  for (int i = 0; i < 1000; ++i) step(1);
  const StepShape streams = {
      .tokens = 16, .context_tokens = 8000, .sequences = 16};
  step(500);
  EXPECT_LT(model.cost().Seconds(streams), 2 * kTrue.Seconds(streams));
  for (int i = 0; i < 200; ++i) step(1);
  EXPECT_NEAR(model.cost().Seconds(streams) / kTrue.Seconds(streams), 1, 0.1);
}

TEST(StepCostModelTest, FollowsAMachineThatBecomesSlower) {
  std::mt19937 random(2);
  StepCostModel model;
  for (int i = 0; i < 300; ++i) {
    const StepShape shape = RandomShape(&random);
    model.Observe(shape, kTrue.Seconds(shape));
  }
  EXPECT_LT(model.error(), 0.02);
  for (int i = 0; i < 600; ++i) {
    const StepShape shape = RandomShape(&random);
    model.Observe(shape, 3 * kTrue.Seconds(shape));
  }
  const StepShape prompt = Prompt(512);
  EXPECT_NEAR(model.cost().Seconds(prompt) / kTrue.Seconds(prompt), 3, 0.15);
}

// Steps that are all alike tell the terms apart badly, but predict themselves.
TEST(StepCostModelTest, StepsAllAlikeStayPredictable) {
  StepCostModel model;
  const StepShape shape = {8, 8 * 500, 8};
  for (int i = 0; i < 20'000; ++i) {
    model.Observe(shape, kTrue.Seconds(shape));
  }
  EXPECT_NEAR(model.cost().Seconds(shape) / kTrue.Seconds(shape), 1, 0.02);
  // And others are learned quickly when they come.
  const StepShape prompt = Prompt(512);
  for (int i = 0; i < 10; ++i) model.Observe(prompt, kTrue.Seconds(prompt));
  EXPECT_NEAR(model.cost().Seconds(prompt) / kTrue.Seconds(prompt), 1, 0.05);
}

// A client after the other, with prompts of about one length: two kinds of
// steps, which cannot tell five terms apart.
TEST(StepCostModelTest, PromptsAllAlikeStayPredictable) {
  std::mt19937 random(4);
  StepCostModel model;
  double worst = 0;
  for (int i = 0; i < 3000; ++i) {
    const int64_t tokens = 300 + static_cast<int64_t>(random() % 20);
    const StepShape prompt = Prompt(tokens);
    const StepShape stream = {1, ContextTokens(tokens + i % 8, 1), 1};
    const double noise =
        1 + (static_cast<double>(random() % 1000) / 1000 - 0.5) * 0.3;
    const StepShape& shape = i % 8 == 0 ? prompt : stream;
    model.Observe(shape, kTrue.Seconds(shape) * noise);
    if (i < 100) continue;
    const double off = model.cost().Seconds(prompt) / kTrue.Seconds(prompt) - 1;
    worst = std::max(worst, std::abs(off));
  }
  EXPECT_LT(worst, 0.25);
  EXPECT_LT(model.error(), 0.15);
  EXPECT_GE(model.cost().fixed, 0);
  EXPECT_GE(model.cost().per_token, 0);
  EXPECT_GE(model.cost().per_context_token, 0);
  EXPECT_GE(model.cost().per_sequence, 0);
  EXPECT_GE(model.cost().per_prompt_context_token, 0);
}

// On a GPU a position costs a prompt's token a twentieth of what it costs a
// stream: by one price for both, one of the two would be far off.
TEST(StepCostModelTest, WhatPromptsReadHasAPriceOfItsOwn) {
  std::mt19937 random(8);
  constexpr StepCost kGpu = {.fixed = 0.02,
                             .per_token = 1.2e-4,
                             .per_context_token = 8e-8,
                             .per_sequence = 2e-5,
                             .per_prompt_context_token = 4e-9};
  StepCostModel model;
  for (int i = 0; i < 1000; ++i) {
    const StepShape shape = RandomShape(&random);
    model.Observe(shape, kGpu.Seconds(shape));
  }
  EXPECT_NEAR(model.cost().per_context_token, 8e-8, 4e-9);
  EXPECT_NEAR(model.cost().per_prompt_context_token, 4e-9, 4e-10);
  StepShape late = ChunkShape(16'000, 512);
  EXPECT_NEAR(model.cost().Seconds(late) / kGpu.Seconds(late), 1, 0.05);
}

// Of a kind that did not come yet, the other says more than nothing.
TEST(StepCostModelTest, AContextThatNoStepHadIsAsTheOther) {
  std::mt19937 random(9);
  StepCostModel streams, prompts;
  for (int i = 0; i < 500; ++i) {
    const auto count = static_cast<int64_t>(1 + random() % 30);
    StepShape shape = {count, count * static_cast<int64_t>(random() % 4000),
                       count};
    streams.Observe(shape, kTrue.Seconds(shape));
    shape = Prompt(static_cast<int64_t>(2 + random() % 4000));
    prompts.Observe(shape, kTrue.Seconds(shape));
  }
  EXPECT_NEAR(streams.cost().per_context_token, kTrue.per_context_token, 1e-8);
  EXPECT_DOUBLE_EQ(streams.cost().per_prompt_context_token,
                   streams.cost().per_context_token);
  EXPECT_NEAR(prompts.cost().per_prompt_context_token,
              kTrue.per_prompt_context_token, 5e-9);
  EXPECT_DOUBLE_EQ(prompts.cost().per_context_token,
                   prompts.cost().per_prompt_context_token);
}

TEST(StepCostMeanTest, IsOfThoseThatAreKnown) {
  StepCostMean mean;
  EXPECT_FALSE(mean.Get().known());
  mean.Add(StepCost());
  EXPECT_FALSE(mean.Get().known());
  mean.Add({1, 2, 3, 4, 5});
  mean.Add({3, 4, 5, 6, 7});
  const StepCost of_both = mean.Get();
  EXPECT_EQ(of_both.fixed, 2);
  EXPECT_EQ(of_both.per_token, 3);
  EXPECT_EQ(of_both.per_context_token, 4);
  EXPECT_EQ(of_both.per_sequence, 5);
  EXPECT_EQ(of_both.per_prompt_context_token, 6);
}

// What was learned of prompts is not lost while only streams run.
TEST(StepCostModelTest, WhatStepsDoNotTellStaysAsItWas) {
  std::mt19937 random(5);
  StepCostModel model;
  for (int i = 0; i < 300; ++i) {
    const StepShape shape = RandomShape(&random);
    model.Observe(shape, kTrue.Seconds(shape));
  }
  for (int i = 0; i < 20'000; ++i) {
    const auto streams = static_cast<int64_t>(1 + random() % 8);
    const StepShape shape = {streams, 500 * streams, streams};
    model.Observe(shape, kTrue.Seconds(shape));
  }
  const StepShape prompt = Prompt(512);
  EXPECT_NEAR(model.cost().Seconds(prompt) / kTrue.Seconds(prompt), 1, 0.1);
}

// Nor drowned in what their noise seems to tell.
TEST(StepCostModelTest, NoisyStreamsSayNothingOfPrompts) {
  std::mt19937 random(6);
  const auto noise = [&] {
    return 1 + (static_cast<double>(random() % 1000) / 1000 - 0.5) * 0.4;
  };
  StepCostModel model;
  const StepShape prompt = Prompt(256);
  for (int i = 0; i < 30; ++i) {
    model.Observe(prompt, kTrue.Seconds(prompt) * noise());
  }
  double worst = 0;
  for (int i = 0; i < 20'000; ++i) {
    const auto streams = static_cast<int64_t>(3 + random() % 3);
    const StepShape shape = {streams, 500 * streams, streams};
    model.Observe(shape, kTrue.Seconds(shape) * noise());
    const double off = model.cost().Seconds(prompt) / kTrue.Seconds(prompt) - 1;
    worst = std::max(worst, std::abs(off));
  }
  EXPECT_LT(worst, 0.1);
}

// Nor do few streams say what many take.
TEST(StepCostModelTest, NoisyFewSayNothingOfMany) {
  std::mt19937 random(7);
  const auto noise = [&] {
    return 1 + (static_cast<double>(random() % 1000) / 1000 - 0.5) * 0.4;
  };
  StepCostModel model;
  const StepShape many = {24, 24 * 300, 24};
  for (int i = 0; i < 30; ++i) {
    model.Observe(many, kTrue.Seconds(many) * noise());
  }
  double worst = 0;
  for (int i = 0; i < 4000; ++i) {
    const auto streams = static_cast<int64_t>(1 + random() % 2);
    const StepShape shape = {streams, 300 * streams, streams};
    model.Observe(shape, kTrue.Seconds(shape) * noise());
    const double off = model.cost().Seconds(many) / kTrue.Seconds(many) - 1;
    worst = std::max(worst, std::abs(off));
  }
  EXPECT_LT(worst, 0.15);
}

TEST(StepCostModelTest, KnowsNothingAtFirst) {
  StepCostModel model;
  EXPECT_FALSE(model.cost().known());
  model.Observe({0, 0, 0}, 1);
  model.Observe({5, 15, 1}, 0);
  EXPECT_FALSE(model.cost().known());
  EXPECT_EQ(model.error(), 0);
}

}  // namespace
}  // namespace baton::scheduling
