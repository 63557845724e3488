#include "scheduling/role_balance.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace baton::scheduling {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::SizeIs;

constexpr WorkerRole kP = WorkerRole::kPrefill;
constexpr WorkerRole kD = WorkerRole::kDecode;

// Steps of 50 ms, 10 of them fixed; 0.1 ms for each token. 100 tokens of each
// prompt are computed, and ten of the answer come from decode steps.
RoleLoad Plain() {
  RoleLoad load;
  load.mix = {.weight = 100,
              .computed_tokens = 100,
              .prompt_tokens = 100,
              .output_tokens = 11,
              .itl_target_seconds = 0.05 / 0.9};
  load.prefill_cost = load.decode_cost = {.fixed = 0.01, .per_token = 1e-4};
  load.token_budget = 100;
  load.most_streams = 1'000'000;
  return load;
}

TEST(SplitCapacityTest, IsWhatTheTimeOfTheWorkersIsEnoughFor) {
  const RoleLoad load = Plain();
  // 0.8 of each second, 1 ms for an answer and 10 for a prompt.
  EXPECT_NEAR(SplitCapacity(load, 0, 1), 0.8 / 0.011, 1e-3);
  EXPECT_NEAR(SplitCapacity(load, 0, 7), 7 * 0.8 / 0.011, 1e-2);
  // A prefill worker takes 5000 tokens per second, half a second of theirs.
  EXPECT_NEAR(SplitCapacity(load, 1, 1), (0.8 + 0.5) / 0.011, 1e-3);
  EXPECT_NEAR(SplitCapacity(load, 3, 1), (0.8 + 1.5) / 0.011, 1e-3);
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
  load.mix.stream_context = 400;
  load.mix.prompt_context = 5'050;
  // A stream: 0.1 + 0.2 + 0.4 ms. A prompt: 10 + 5.05 + 0.2 ms.
  EXPECT_NEAR(SplitCapacity(load, 0, 1), 0.8 / (0.007 + 0.01525), 1e-3);
  // What they cost on a prefill worker is another thing.
  EXPECT_NEAR(SplitCapacity(load, 1, 1),
              (0.8 + 5000 * 0.01525 / 100) / (0.007 + 0.01525), 1e-3);
  load.prefill_cost.per_context_token = 2e-6;
  EXPECT_NEAR(SplitCapacity(load, 1, 1),
              (0.8 + 100 / (0.02 + 0.0101) * 0.01525 / 100) / (0.007 + 0.01525),
              1e-3);
}

TEST(SplitCapacityTest, PrefillWorkersAloneWhereDecodeWorkersMayNot) {
  RoleLoad load = Plain();
  load.allow_local_prefill = false;
  EXPECT_EQ(SplitCapacity(load, 0, 3), 3 * 0.8 / 0.011);
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
           c.per_context_token * mix.prompt_context + c.per_sequence;
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

RoleLoad RandomLoad(std::mt19937_64* random) {
  const auto real = [&](double from, double to) {
    return std::exp(std::uniform_real_distribution<double>(
        std::log(from), std::log(to))(*random));
  };
  const auto cost = [&] {
    return StepCost{.fixed = real(1e-3, 1e-2),
                    .per_token = real(1e-5, 1e-4),
                    .per_context_token = real(1e-9, 1e-7),
                    .per_sequence = real(1e-6, 1e-4)};
  };
  RoleLoad load;
  load.mix.weight = 100;
  load.mix.computed_tokens = real(10, 10'000);
  load.mix.prompt_tokens = load.mix.computed_tokens;
  load.mix.output_tokens = 1 + real(1, 1000);
  load.mix.stream_context = load.mix.prompt_tokens + load.mix.output_tokens / 2;
  load.mix.prompt_context =
      load.mix.computed_tokens * load.mix.computed_tokens / 2;
  load.mix.itl_target_seconds = real(0.015, 0.2);
  load.prefill_cost = cost();
  load.decode_cost = cost();
  load.token_budget = static_cast<int32_t>(real(100, 10'000));
  load.most_streams = static_cast<int32_t>(real(1, 1000));
  return load;
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
    const double carries = SplitCapacity(load, best, all - best);
    for (int32_t p = counts.only_prefill;
         p <= counts.only_prefill + counts.either; ++p) {
      const double other = SplitCapacity(load, p, all - p);
      if (best == 0) {
        EXPECT_LE(other, (1 + kPrefillMargin) * carries) << p;
      } else {
        EXPECT_LE(other, carries) << p;
        if (p == 0) {
          EXPECT_LT((1 + kPrefillMargin) * other, carries);
        }
      }
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

// A cluster in which what is decided is done at once.
class RoleBalanceTest : public testing::Test {
 protected:
  // The first `prefill` of them are prefill workers.
  void Fill(int32_t prefill, int32_t decode) {
    workers_.clear();
    for (int32_t i = 0; i < prefill + decode; ++i) {
      workers_.push_back({.id = WorkerId{static_cast<uint64_t>(i + 1)},
                          .can_change = true,
                          .role = i < prefill ? kP : kD});
    }
  }

  std::vector<RoleChange> Decide(double now) {
    const std::vector<RoleChange> changes =
        balance_.Decide({.now = now, .workers = workers_, .load = load_});
    for (const RoleChange& change : changes) {
      EXPECT_TRUE(workers_[change.worker].can_change);
      EXPECT_NE(workers_[change.worker].role, change.role);
      workers_[change.worker].role = change.role;
    }
    return changes;
  }

  int32_t NumPrefill() const {
    return static_cast<int32_t>(
        std::count_if(workers_.begin(), workers_.end(),
                      [](const auto& worker) { return worker.role == kP; }));
  }
  int32_t Best() const {
    return BestPrefillWorkers(
        load_, {.either = static_cast<int32_t>(workers_.size())});
  }

  // Each second from `from` on; the times of changes.
  std::vector<double> Run(double from, double seconds) {
    std::vector<double> times;
    for (double now = from; now < from + seconds; ++now) {
      if (!Decide(now).empty()) times.push_back(now);
    }
    return times;
  }

  // Long prompts, for which nearly all are to be prefill workers; long answers.
  void AskForPrefill() {
    load_.mix.computed_tokens = load_.mix.prompt_tokens = 2000;
    load_.token_budget = 10'000;
  }
  void AskForDecode() {
    load_.mix.computed_tokens = load_.mix.prompt_tokens = 10;
    load_.mix.output_tokens = 500;
  }

  RoleLoad load_ = Plain();
  std::vector<RoleWorker> workers_;
  RoleBalance balance_;
  const RoleBalanceOptions options_;
};

TEST_F(RoleBalanceTest, ComesToTheBestSplitAndStaysThere) {
  Fill(4, 4);
  AskForPrefill();
  EXPECT_GT(Best(), 5);
  Run(0, 100);
  EXPECT_EQ(NumPrefill(), Best());
  EXPECT_THAT(Run(100, 1000), IsEmpty());
  AskForDecode();
  EXPECT_LT(Best(), 4);
  Run(1100, 200);
  EXPECT_EQ(NumPrefill(), Best());
}

TEST_F(RoleBalanceTest, WaitsUntilItHasHeldForSomeTime) {
  Fill(1, 7);
  AskForPrefill();
  for (double now = 0; now < options_.hold_seconds; now += 0.5) {
    EXPECT_THAT(Decide(now), IsEmpty()) << now;
  }
  // For a moment, it is not better any more.
  const RoleLoad wanting = load_;
  load_.mix.weight = 1;
  EXPECT_THAT(Decide(options_.hold_seconds), IsEmpty());
  load_ = wanting;
  EXPECT_THAT(Decide(options_.hold_seconds + 1), IsEmpty());
  EXPECT_THAT(Decide(2 * options_.hold_seconds + 1), SizeIs(1));
}

TEST_F(RoleBalanceTest, OneAtATimeWithPausesBetween) {
  Fill(1, 7);
  AskForPrefill();
  const std::vector<double> times = Run(0, 100);
  EXPECT_THAT(times, SizeIs(Best() - 1));
  for (size_t i = 1; i < times.size(); ++i) {
    EXPECT_GE(times[i] - times[i - 1], options_.dwell_seconds);
  }
}

TEST_F(RoleBalanceTest, SeveralOfMany) {
  Fill(10, 150);
  AskForPrefill();
  Decide(0);
  EXPECT_THAT(Decide(options_.hold_seconds), SizeIs(10));
}

TEST_F(RoleBalanceTest, NoMoreThanAreWanted) {
  AskForPrefill();
  load_.allow_local_prefill = false;
  Fill(50, 110);
  const int32_t best = Best();
  Fill(best - 12, 160 - best + 12);
  const std::vector<double> times = Run(0, 100);
  EXPECT_THAT(times, SizeIs(2));
  EXPECT_EQ(NumPrefill(), best);
}

TEST_F(RoleBalanceTest, NotForAFewPerCent) {
  Fill(4, 4);
  AskForPrefill();
  const int32_t best = Best();
  int near = 0;
  for (int32_t p = 1; p < 8; ++p) {
    Fill(p, 8 - p);
    RoleBalance balance;
    balance.Decide({.now = 0, .workers = workers_, .load = load_});
    const bool changes =
        !balance.Decide({.now = 50, .workers = workers_, .load = load_})
             .empty();
    const double gain =
        SplitCapacity(load_, best, 8 - best) / SplitCapacity(load_, p, 8 - p);
    EXPECT_EQ(changes, gain >= 1 + options_.margin) << p;
    near += !changes;
  }
  EXPECT_LT(near, 7);
  EXPECT_GE(near, 1);
}

TEST_F(RoleBalanceTest, TheOneWithTheFewestQueuedTokensBecomesADecodeWorker) {
  Fill(3, 3);
  workers_[0].queued_tokens = 500;
  workers_[1].queued_tokens = 100;
  workers_[2].queued_tokens = 300;
  workers_[1].streams = 50;
  workers_[3].streams = 7;
  workers_[4].streams = 9;
  workers_[5].streams = 5;
  workers_[5].queued_tokens = 9999;
  AskForDecode();
  Decide(0);
  EXPECT_THAT(Decide(10), ElementsAre(RoleChange{1, kD}));
}

TEST_F(RoleBalanceTest, TheOneWithTheFewestStreamsBecomesAPrefillWorker) {
  Fill(3, 3);
  workers_[3].streams = 7;
  workers_[4].streams = 9;
  workers_[5].streams = 5;
  workers_[5].queued_tokens = 9999;
  AskForPrefill();
  Decide(0);
  EXPECT_THAT(Decide(10), ElementsAre(RoleChange{5, kP}));
}

TEST_F(RoleBalanceTest, WhoCannotChangeDoesNot) {
  Fill(1, 7);
  workers_[1].can_change = workers_[2].can_change = false;
  AskForPrefill();
  Run(0, 100);
  EXPECT_EQ(NumPrefill(), 6);
  for (RoleWorker& worker : workers_) worker.can_change = false;
  AskForDecode();
  EXPECT_THAT(Run(100, 100), IsEmpty());
}

TEST_F(RoleBalanceTest, AWorkerDoesNotGoBackSoon) {
  Fill(1, 1);
  workers_[0].can_change = false;
  workers_.push_back({.id = WorkerId{9}, .can_change = true, .role = kD});
  AskForPrefill();
  ASSERT_EQ(BestPrefillWorkers(load_, {1, 1, 1}), 2);
  const std::vector<double> there = Run(0, 10);
  ASSERT_THAT(there, SizeIs(1));
  AskForDecode();
  const std::vector<double> back = Run(10, 50);
  ASSERT_THAT(back, SizeIs(1));
  EXPECT_GE(back[0] - there[0], options_.worker_dwell_seconds);
}

TEST_F(RoleBalanceTest, WithoutADecodeWorkerOneChangesAtOnce) {
  Fill(3, 0);
  workers_[0].queued_tokens = 10;
  load_ = RoleLoad();  // nothing is known
  EXPECT_THAT(Decide(0), ElementsAre(RoleChange{1, kD}));
  EXPECT_THAT(Decide(1), IsEmpty());
  // It went away; who has just changed is as good as another.
  workers_ = {{.id = WorkerId{2}, .can_change = true, .role = kP}};
  EXPECT_THAT(Decide(1.5), ElementsAre(RoleChange{0, kD}));
  workers_.clear();
  EXPECT_THAT(Decide(2), IsEmpty());
  Fill(2, 0);
  for (RoleWorker& worker : workers_) worker.can_change = false;
  EXPECT_THAT(Decide(3), IsEmpty());
}

TEST_F(RoleBalanceTest, KnowsWhenItKnowsNothing) {
  Fill(1, 7);
  AskForPrefill();
  const RoleLoad known = load_;
  load_.prefill_cost = load_.decode_cost = {};
  EXPECT_THAT(Run(0, 50), IsEmpty());
  load_ = known;
  load_.mix.weight = 9;
  EXPECT_THAT(Run(50, 50), IsEmpty());
  load_.mix.weight = 10;
  EXPECT_THAT(Run(100, 5), SizeIs(1));
}

// Whatever comes: never without a decode worker, never more changes than the
// pauses leave time for.
TEST_F(RoleBalanceTest, ChangesAreBounded) {
  std::mt19937_64 random(4);
  Fill(8, 8);
  std::vector<double> last(16, -1e9);
  double changed = -1e9;
  int changes = 0;
  for (double now = 0; now < 2000; now += 0.7) {
    if (random() % 20 == 0) load_ = RandomLoad(&random);
    for (const RoleChange& change : Decide(now)) {
      EXPECT_GE(now - changed, options_.dwell_seconds);
      EXPECT_GE(now - last[change.worker], options_.worker_dwell_seconds);
      changed = last[change.worker] = now;
      ++changes;
    }
    ASSERT_LT(NumPrefill(), 16);
  }
  EXPECT_GT(changes, 20);
}

}  // namespace
}  // namespace baton::scheduling
