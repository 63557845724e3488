#include "worker/step_pace.h"

#include "absl/time/time.h"
#include "gtest/gtest.h"

namespace baton::worker {
namespace {

absl::Time At(int64_t ms) {
  return absl::UnixEpoch() + absl::Milliseconds(ms);
}

TEST(StepPaceTest, CountsWhatTheLoopDoesBetweenSteps) {
  StepPace pace;
  EXPECT_DOUBLE_EQ(pace.Step(At(100), At(110)), 0.010);
  EXPECT_DOUBLE_EQ(pace.Step(At(115), At(125)), 0.015);
  EXPECT_DOUBLE_EQ(pace.Step(At(125), At(130)), 0.005);
}

TEST(StepPaceTest, AfterAPauseAStepCostsItsOwnTime) {
  StepPace pace;
  pace.Step(At(100), At(110));
  pace.Idle();
  EXPECT_DOUBLE_EQ(pace.Step(At(500), At(510)), 0.010);
}

TEST(StepPaceTest, AClockThatGoesBackCostsNothing) {
  StepPace pace;
  pace.Step(At(100), At(200));
  EXPECT_DOUBLE_EQ(pace.Step(At(90), At(95)), 0.005);
  EXPECT_DOUBLE_EQ(pace.Step(At(90), At(80)), 0);
}

}  // namespace
}  // namespace baton::worker
