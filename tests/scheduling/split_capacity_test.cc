// The capacity of a split, and the best of splits: scheduling/role_balance.h.
#include <algorithm>
#include <cmath>
#include <random>

#include <gtest/gtest.h>

#include "scheduling/role_balance.h"
#include "tests/scheduling/role_loads.h"

namespace baton::scheduling::split_capacity_test {
namespace {

TEST(SplitCapacityTest, IsWhatTheTimeOfTheWorkersIsEnoughFor) {
  const RoleLoad load = Plain();
  // 0.8 of each second, 1 ms for an answer and 10 for a prompt.
  EXPECT_NEAR(SplitCapacity(load, 0, 1), 0.8 / 0.011, 1e-3);
  EXPECT_NEAR(SplitCapacity(load, 0, 7), 7 * 0.8 / 0.011, 1e-2);
  // A prefill worker takes 5000 tokens per second, half a second of theirs.
  EXPECT_NEAR(SplitCapacity(load, 1, 1), (0.8 + 0.5) / 0.011, 1e-3);
  EXPECT_NEAR(SplitCapacity(load, 3, 1), (0.8 + 1.5) / 0.011, 1e-3);
  // Those that it leaves may count for more: 15 ms.
  EXPECT_NEAR(SplitCapacity(load, 1, 1, 1.5), (0.8 + 50 * 0.015) / 0.016, 1e-3);
  // More of them than the decode workers' streams need.
  EXPECT_NEAR(SplitCapacity(load, 20, 1), 0.8 / 0.001, 1e-2);
  EXPECT_EQ(SplitCapacity(load, 5, 0), 0);
}

TEST(SplitCapacityTest, FewStreamsPayForStepsMoreOften) {
  RoleLoad load = Plain();
  load.most_streams = 16;
  // 12 places are used. A step of as many streams takes 11 ms and not 50: all
  // of the time is used. A place is held for 20 ms before.
  const double rate = SplitCapacity(load, 20, 1);
  const double places = 12 - rate * 0.02;
  EXPECT_NEAR(rate * 10 / places * (0.01 + 1e-4 * places), 1, 1e-9);
  EXPECT_NEAR(rate, 92.197, 0.001);
  // Without prefill workers, and with 10 ms for each prompt.
  const double alone = SplitCapacity(load, 0, 1);
  EXPECT_NEAR(alone * 10 / (12 - alone * 0.02) * 0.01 + alone * (0.001 + 0.01),
              1, 1e-9);
  const double half = SplitCapacity(load, 1, 1);
  EXPECT_NEAR(half * 10 / (12 - half * 0.02) * 0.01 + half * 0.011 - 0.5, 1,
              1e-9);
}

TEST(SplitCapacityTest, ContextAndSamplingCost) {
  RoleLoad load = Plain();
  load.decode_cost.per_sequence = 2e-4;
  load.decode_cost.per_context_token = 1e-6;
  load.decode_cost.per_prompt_context_token = 2e-6;
  load.mix.stream_context = 400;
  load.mix.prompt_context = 5'050;
  // A stream: 0.1 + 0.2 + 0.4 ms. A prompt: 10 + 10.1 + 0.2 ms.
  EXPECT_NEAR(SplitCapacity(load, 0, 1), 0.8 / (0.007 + 0.0203), 1e-3);
  // What they cost on a prefill worker is another thing.
  EXPECT_NEAR(SplitCapacity(load, 1, 1), (0.8 + 50 * 0.0203) / (0.007 + 0.0203),
              1e-3);
  load.prefill_cost.per_prompt_context_token = 2e-6;
  EXPECT_NEAR(SplitCapacity(load, 1, 1),
              (0.8 + 1 / (0.02 + 0.0101) * 0.0203) / (0.007 + 0.0203), 1e-3);
}

TEST(SplitCapacityTest, PrefillWorkersAloneWhereDecodeWorkersMayNot) {
  RoleLoad load = Plain();
  load.allow_local_prefill = false;
  EXPECT_EQ(SplitCapacity(load, 0, 3), 0);
  EXPECT_NEAR(SplitCapacity(load, 1, 3), 50, 1e-9);
  EXPECT_NEAR(SplitCapacity(load, 20, 1), 800, 1e-2);
}

TEST(SplitCapacityTest, OneCostStandsInForTheOther) {
  RoleLoad load = Plain();
  const double both = SplitCapacity(load, 1, 2);
  load.prefill_cost = {};
  EXPECT_EQ(SplitCapacity(load, 1, 2), both);
  load = Plain();
  load.decode_cost = {};
  EXPECT_EQ(SplitCapacity(load, 1, 2), both);
  load.prefill_cost = {};
  EXPECT_FALSE(IsKnown(load));
  EXPECT_EQ(SplitCapacity(load, 1, 2), 0);
}

TEST(SplitCapacityTest, WithoutATargetStepsTakeWhatTheOptionSays) {
  RoleLoad load = Plain();
  load.mix.itl_target_seconds = 0;
  EXPECT_NEAR(SplitCapacity(load, 0, 1), 0.9 / 0.011, 1e-3);
  load.default_step_seconds = 0.02;
  EXPECT_NEAR(SplitCapacity(load, 0, 1), 0.5 / 0.011, 1e-3);
}

TEST(SplitCapacityTest, ATargetThatIsTooTightLeavesOneStream) {
  RoleLoad load = Plain();
  load.mix.itl_target_seconds = 0.001;
  load.mix.computed_tokens = 0;
  // Ten steps of 10.1 ms for a request.
  EXPECT_NEAR(SplitCapacity(load, 0, 2), 2 / 0.101, 1e-6);
}

TEST(SplitCapacityTest, IsFiniteWhateverIsMissing) {
  for (const double fixed : {0.0, 0.01}) {
    for (const double per_token : {0.0, 1e-4}) {
      for (const double target : {0.0, 0.001, 0.1}) {
        for (const double computed : {0.0, 100.0}) {
          for (const double output : {0.0, 1.0, 20.0}) {
            for (const double step : {0.0, 0.1}) {
              RoleLoad load = Plain();
              load.prefill_cost =
                  load.decode_cost = {.fixed = fixed, .per_token = per_token};
              load.mix.itl_target_seconds = target;
              load.mix.computed_tokens = computed;
              load.mix.output_tokens = output;
              load.default_step_seconds = step;
              for (const int32_t prefill : {0, 1}) {
                const double capacity = SplitCapacity(load, prefill, 2);
                EXPECT_TRUE(std::isfinite(capacity));
                EXPECT_GE(capacity, 0);
              }
            }
          }
        }
      }
    }
  }
}

// Whether decode workers have time for `rate` requests per second, by trying
// numbers of steps per second.
bool Carries(const RoleLoad& load, double rate, int32_t prefill,
             int32_t decode) {
  const StepCost& cost = load.decode_cost;
  const RequestMean& mix = load.mix;
  const auto prompt_seconds = [&](const StepCost& c) {
    return c.per_token * mix.computed_tokens +
           c.per_prompt_context_token * mix.prompt_context + c.per_sequence;
  };
  // With its share of a step's fixed cost.
  const double of_prefill =
      prompt_seconds(load.prefill_cost) +
      load.prefill_cost.fixed * mix.computed_tokens / load.token_budget;
  const double prompts = std::max(0.0, rate - prefill / of_prefill);
  const double all = decode * load.most_streams;
  const double places = std::max(all - std::sqrt(all), all / 2) / decode -
                        rate * of_prefill / decode;
  const double least = 1 / (0.9 * mix.itl_target_seconds);
  for (double steps = least; steps < 1e4; steps *= 1.001) {
    const double streams = rate * (mix.output_tokens - 1) / decode / steps;
    const double seconds =
        cost.fixed +
        streams * (cost.per_token + cost.per_sequence +
                   cost.per_context_token * mix.stream_context) +
        prompts / decode / steps * prompt_seconds(cost);
    if (streams <= places && seconds * steps <= 1) return true;
  }
  return false;
}

TEST(SplitCapacityTest, IsTheMostThatAnyPaceOfStepsCarries) {
  std::mt19937_64 random(11);
  for (int i = 0; i < 60; ++i) {
    SCOPED_TRACE(i);
    const RoleLoad load = RandomLoad(&random);
    const auto prefill = static_cast<int32_t>(random() % 5);
    const auto decode = 1 + static_cast<int32_t>(random() % 5);
    const double capacity = SplitCapacity(load, prefill, decode);
    ASSERT_GT(capacity, 0);
    EXPECT_TRUE(Carries(load, 0.995 * capacity, prefill, decode));
    EXPECT_FALSE(Carries(load, 1.005 * capacity, prefill, decode));
  }
}

TEST(BestPrefillWorkersTest, IsTheBestOfAll) {
  std::mt19937_64 random(12);
  int with = 0;
  for (int i = 0; i < 200; ++i) {
    SCOPED_TRACE(i);
    const RoleLoad load = RandomLoad(&random);
    RoleCounts counts;
    counts.only_prefill = static_cast<int32_t>(random() % 3);
    counts.only_decode = static_cast<int32_t>(random() % 3);
    counts.either = 1 + static_cast<int32_t>(random() % 12);
    const int32_t all =
        counts.only_prefill + counts.only_decode + counts.either;
    const int32_t best = BestPrefillWorkers(load, counts);
    ASSERT_GE(best, counts.only_prefill);
    ASSERT_LE(best, counts.only_prefill + counts.either);
    ASSERT_GE(all - best, 1);
    with += best > 0;
    // Without prefill workers, the best that there is with some.
    int32_t best_with = 0;
    double most = 0;
    // 0.3 / sqrt(all) where that is more: of fewer than 36.
    const double margin = all >= 36 ? kPrefillMargin : 0.3 / std::sqrt(all);
    for (int32_t p = counts.only_prefill;
         p <= counts.only_prefill + counts.either; ++p) {
      if (p > 0 && best > 0) {
        EXPECT_LE(SplitCapacity(load, p, all - p, kLeftOverCost),
                  SplitCapacity(load, best, all - best, kLeftOverCost))
            << p;
      } else if (best > 0) {
        EXPECT_GT(SplitRatio(load, all, best, 0), 1);
        EXPECT_GT(SplitCapacity(load, best, all - best),
                  (1 + margin) * SplitCapacity(load, 0, all));
      } else if (p > 0 &&
                 SplitCapacity(load, p, all - p, kLeftOverCost) > most) {
        most = SplitCapacity(load, p, all - p, kLeftOverCost);
        best_with = p;
      }
    }
    if (best == 0) {
      EXPECT_LE(SplitRatio(load, all, best_with, 0), 1);
      EXPECT_LE(SplitCapacity(load, best_with, all - best_with),
                (1 + margin) * SplitCapacity(load, 0, all));
    }
  }
  EXPECT_GT(with, 20);
  EXPECT_LT(with, 200);
}

TEST(BestPrefillWorkersTest, LeavesADecodeWorker) {
  RoleLoad load = Plain();
  load.mix.computed_tokens = load.mix.prompt_tokens = 1e6;
  load.token_budget = 10'000;
  EXPECT_EQ(BestPrefillWorkers(load, {.either = 4}, 0), 3);
  EXPECT_EQ(BestPrefillWorkers(load, {.only_decode = 1, .either = 4}, 0), 4);
  EXPECT_EQ(BestPrefillWorkers(load, {.either = 1}, 0), 0);
  EXPECT_EQ(BestPrefillWorkers(load, {.only_prefill = 2}, 0), 2);
}

}  // namespace
}  // namespace baton::scheduling::split_capacity_test
