#include "scheduling/role_balance.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/scheduling/role_loads.h"

namespace baton::scheduling::role_balance_test {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::SizeIs;

constexpr WorkerRole kP = WorkerRole::kPrefill;
constexpr WorkerRole kD = WorkerRole::kDecode;

TEST(TakesWorkTest, PromptsWaitForTheLastStream) {
  EXPECT_TRUE(TakesWork(kP, true, 0, 0));
  EXPECT_FALSE(TakesWork(kP, true, 1, 0));
  EXPECT_FALSE(TakesWork(kP, true, 1, kMostWaitSeconds - 1));
  EXPECT_TRUE(TakesWork(kP, true, 1, kMostWaitSeconds));
  EXPECT_FALSE(TakesWork(kP, false, 0, kMostWaitSeconds));
  EXPECT_TRUE(TakesWork(kD, true, 7, 0));
  EXPECT_FALSE(TakesWork(kD, false, 0, kMostWaitSeconds));
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
  EXPECT_THAT(Decide(options_.hold_seconds), SizeIs(20));
}

TEST_F(RoleBalanceTest, NoMoreThanAreWanted) {
  AskForPrefill();
  load_.allow_local_prefill = false;
  Fill(50, 110);
  const int32_t best = Best();
  Fill(best - 28, 160 - best + 28);
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
    const double gain = SplitRatio(load_, 8, best, p);
    EXPECT_EQ(changes, gain >= 1 + options_.margin + options_.noise / 100) << p;
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
  // Alone, it is still on its way; after some seconds it is asked again.
  workers_ = {{.id = WorkerId{2}, .can_change = true, .role = kP}};
  EXPECT_THAT(Decide(4.5), IsEmpty());
  EXPECT_THAT(Decide(5.5), ElementsAre(RoleChange{0, kD}));
  workers_.clear();
  EXPECT_THAT(Decide(12), IsEmpty());
  Fill(2, 0);
  for (RoleWorker& worker : workers_) worker.can_change = false;
  EXPECT_THAT(Decide(13), IsEmpty());
}

// Nothing is served without one of each kind then.
TEST_F(RoleBalanceTest, WithoutLocalPrefillOneIsAlwaysAPrefillWorker) {
  AskForDecode();
  RoleLoad known = load_;
  Fill(0, 3);
  load_ = RoleLoad();
  EXPECT_THAT(Decide(0), IsEmpty());
  load_.allow_local_prefill = false;
  EXPECT_THAT(Decide(1), SizeIs(1));
  Fill(0, 1);
  EXPECT_THAT(Decide(10), IsEmpty());
  known.allow_local_prefill = false;
  EXPECT_EQ(BestPrefillWorkers(known, {.either = 4}), 1);
  EXPECT_EQ(BestPrefillWorkers(known, {.only_decode = 3}), 0);
}

TEST_F(RoleBalanceTest, OfFewRequestsItBelievesLess) {
  AskForPrefill();
  Fill(4, 4);
  const int32_t best = Best();
  Fill(best - 1, 9 - best);
  const double gain = SplitRatio(load_, 8, best, best - 1);
  // As many as make the difference.
  const double enough =
      std::pow(options_.noise / (gain - 1 - options_.margin), 2);
  ASSERT_GT(enough, 20);
  load_.mix.weight = 0.9 * enough;
  EXPECT_THAT(Run(0, 50), IsEmpty());
  load_.mix.weight = 1.1 * enough;
  EXPECT_THAT(Run(50, 3), SizeIs(1));
}

// Two workers, of which one computes prompts or none: the split has to be worth
// its margin whichever of the two is there already.
TEST_F(RoleBalanceTest, TwoWorkersAreOnePoolUnlessASplitIsMuchBetter) {
  load_ = Plain();
  load_.mix.weight = 1e9;
  load_.token_budget = 1000;
  const double gain = SplitCapacity(load_, 1, 1) / SplitCapacity(load_, 0, 2);
  ASSERT_GT(gain, 1.05);
  ASSERT_LT(gain, 1 + 0.3 / std::sqrt(2));
  Fill(1, 1);
  EXPECT_THAT(Run(0, 5), SizeIs(1));
  EXPECT_EQ(NumPrefill(), 0);
  EXPECT_THAT(Run(100, 50), IsEmpty());
  // Steps of streams that are mostly fixed cost: a prefill worker has none.
  load_.decode_cost.fixed = 0.03;
  ASSERT_GT(SplitCapacity(load_, 1, 1) / SplitCapacity(load_, 0, 2), 1.3);
  EXPECT_THAT(Run(200, 5), SizeIs(1));
  EXPECT_EQ(NumPrefill(), 1);
  EXPECT_THAT(Run(300, 50), IsEmpty());
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
  EXPECT_THAT(Run(100, 3), SizeIs(1));
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
    const std::vector<RoleChange> decided = Decide(now);
    EXPECT_LE(decided.size(), 2);
    if (decided.empty()) continue;
    EXPECT_GE(now - changed, options_.dwell_seconds);
    changed = now;
    ++changes;
    for (const RoleChange& change : decided) {
      EXPECT_GE(now - last[change.worker], options_.worker_dwell_seconds);
      last[change.worker] = now;
    }
    ASSERT_LT(NumPrefill(), 16);
  }
  EXPECT_GT(changes, 20);
}

}  // namespace
}  // namespace baton::scheduling::role_balance_test
