// Simulations of whole clusters, from seeds (simulation.h). In the environment:
// BATON_SIM_SEED runs that seed alone, BATON_SIM_SEEDS says how many to run.
#include <cstdlib>
#include <string>

#include <gtest/gtest.h>

#include "absl/strings/numbers.h"
#include "common/log.h"
#include "tests/sim/seeds.h"

namespace baton::sim {
namespace {

using kv_transfer::Fence;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr uint64_t kSeeds = 300;
#else
constexpr uint64_t kSeeds = 5000;
#endif
// It takes some hundreds to meet the rarest mishap.
constexpr uint64_t kSeedsForFences = 3000;
// Fewer than this need not come to every place.
constexpr uint64_t kEnoughForAll = 1000;

uint64_t FromEnvironment(const char* name, uint64_t otherwise) {
  const char* value = std::getenv(name);
  if (value == nullptr) return otherwise;
  uint64_t number = 0;
  CHECK(absl::SimpleAtoi(value, &number)) << name << "=" << value;
  return number;
}

class SimTest : public testing::Test {
 protected:
  static void SetUpTestSuite() { StayQuiet(); }
};

TEST_F(SimTest, WhateverGoesWrongAnswersAreRightAndNothingIsLeft) {
  const uint64_t only = FromEnvironment("BATON_SIM_SEED", 0);
  const uint64_t count =
      only != 0 ? 1 : FromEnvironment("BATON_SIM_SEEDS", kSeeds);
  const SeedsReport report = RunSeeds(only != 0 ? only : 1, count);
  ASSERT_FALSE(report.failed_seed.has_value())
      << report.last_events << report.violation
      << "\nreplay: " << report.replay;
  EXPECT_EQ(report.num_run, count);
  if (count >= kEnoughForAll) {
    EXPECT_EQ(report.coverage.Missing(), "") << report.coverage.Describe();
  }
}

// Long stillness that no fault explains; a sequence that its own cached blocks
// held up; requests of two routers that were in each other's way, in lock step,
// until their deadlines; a world so slow that all gave each other up.
TEST_F(SimTest, SeedsThatOnceFailed) {
  for (const uint64_t seed : {601212, 607305, 454065, 344681, 5843}) {
    const SeedsReport report = RunSeeds(seed, 1);
    EXPECT_FALSE(report.failed_seed.has_value())
        << report.violation << "\nreplay: " << report.replay;
  }
}

TEST_F(SimTest, ASeedIsOneRun) {
  for (uint64_t seed = 1; seed <= 30; ++seed) {
    EXPECT_EQ(RunSeeds(seed, 1).digest, RunSeeds(seed, 1).digest)
        << "seed " << seed;
  }
}

// Takes a fence away, and expects to see why it is there.
class RemovedFenceTest : public testing::TestWithParam<Fence> {
 protected:
  static void SetUpTestSuite() { StayQuiet(); }
};

TEST_P(RemovedFenceTest, IsNoticed) {
  const SeedsReport report = RunSeeds(1, kSeedsForFences, GetParam());
  ASSERT_TRUE(report.failed_seed.has_value())
      << "nothing went wrong in " << report.num_run << " seeds";
  // With the fence, the same events do no harm.
  EXPECT_FALSE(RunSeeds(*report.failed_seed, 1).failed_seed.has_value());
  RecordProperty("seed", std::to_string(*report.failed_seed));
  RecordProperty("violation", report.violation);
}

INSTANTIATE_TEST_SUITE_P(Fences, RemovedFenceTest,
                         testing::Values(Fence::kGeneration, Fence::kQuarantine,
                                         Fence::kCommitCheck),
                         [](const testing::TestParamInfo<Fence>& fence) {
                           switch (fence.param) {
                             case Fence::kGeneration:
                               return "Generation";
                             case Fence::kQuarantine:
                               return "Quarantine";
                             case Fence::kCommitCheck:
                               return "CommitCheck";
                             case Fence::kNone:
                               break;
                           }
                           return "None";
                         });

}  // namespace
}  // namespace baton::sim
