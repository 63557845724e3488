#include "planner/step_run.h"

#include <random>

#include <gtest/gtest.h>

namespace baton::planner {
namespace {

TEST(StepRunTest, SumsItsSteps) {
  const StepRun run = {.start = 10, .first = 2, .growth = 0.5, .count = 4};
  EXPECT_DOUBLE_EQ(run.EndOf(0), 10);
  EXPECT_DOUBLE_EQ(run.EndOf(1), 12);
  EXPECT_DOUBLE_EQ(run.EndOf(2), 14.5);
  EXPECT_DOUBLE_EQ(run.end(), 10 + 2 + 2.5 + 3 + 3.5);
  EXPECT_DOUBLE_EQ(run.Duration(3), 3.5);
}

TEST(StepRunTest, WhatComesInAStepWaitsForItsEnd) {
  const StepRun run = {.start = 10, .first = 2, .growth = 0.5, .count = 4};
  EXPECT_EQ(run.StepsUntil(10), 0);
  EXPECT_EQ(run.StepsUntil(10.1), 1);
  EXPECT_EQ(run.StepsUntil(12), 1);
  EXPECT_EQ(run.StepsUntil(12.1), 2);
  EXPECT_EQ(run.StepsUntil(1000), 4);
  EXPECT_EQ(run.StepsOver(11.9), 0);
  EXPECT_EQ(run.StepsOver(12), 1);
  EXPECT_EQ(run.StepsOver(14.4), 1);
  EXPECT_EQ(run.StepsOver(1000), 4);
}

TEST(StepRunTest, FindsTheStepThatCountingFinds) {
  std::mt19937_64 random(7);
  const auto uniform = [&](double from, double to) {
    return std::uniform_real_distribution<double>(from, to)(random);
  };
  for (int round = 0; round < 2000; ++round) {
    StepRun run;
    run.start = uniform(0, 1e5);
    run.first = uniform(1e-4, 1);
    run.growth = round % 3 == 0 ? 0 : uniform(0, 1e-3);
    run.count = 1 + static_cast<int64_t>(random() % 500);
    const double now = uniform(run.start, run.end());
    int64_t steps = 0;
    while (steps < run.count && run.EndOf(steps) < now) ++steps;
    EXPECT_EQ(run.StepsUntil(now), steps);
    // At an end exactly.
    const int64_t at = static_cast<int64_t>(random() % run.count) + 1;
    EXPECT_EQ(run.StepsUntil(run.EndOf(at)), at);
    EXPECT_EQ(run.StepsOver(run.EndOf(at)), at);
  }
}

}  // namespace
}  // namespace baton::planner
