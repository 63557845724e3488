#include "worker/worker_health.h"

#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/manual_clock.h"

namespace baton::worker {
namespace {

using ::testing::HasSubstr;

class WorkerHealthTest : public ::testing::Test {
 protected:
  test::ManualClock clock_;
  WorkerHealth health_{&clock_};
};

TEST_F(WorkerHealthTest, IsReadyFromServeToDrainAndAliveAllTheWhile) {
  EXPECT_EQ(health_.Readiness().status, 503);
  EXPECT_EQ(health_.Readiness().body, "{\"status\":\"starting\"}");
  EXPECT_EQ(health_.Liveness().status, 200);

  health_.Serve();
  EXPECT_EQ(health_.Readiness().status, 200);
  EXPECT_EQ(health_.Readiness().body, "{\"status\":\"ready\"}");

  health_.Drain();
  EXPECT_EQ(health_.Readiness().status, 503);
  EXPECT_EQ(health_.Readiness().body, "{\"status\":\"draining\"}");
  EXPECT_EQ(health_.Liveness().status, 200);
  EXPECT_EQ(health_.Liveness().body, "{\"status\":\"alive\"}");
}

TEST_F(WorkerHealthTest, ASignalBeforeTheStartIsNotForgotten) {
  health_.Drain();
  health_.Serve();
  EXPECT_THAT(health_.Readiness().body, HasSubstr("draining"));
}

TEST_F(WorkerHealthTest, ALoopWithoutTurnsIsStuckUntilItsNextTurn) {
  health_.Serve();
  clock_.Advance(WorkerHealth::kStuckAfter);
  EXPECT_EQ(health_.Liveness().status, 200);
  EXPECT_EQ(health_.Readiness().status, 200);

  clock_.Advance(absl::Seconds(1));
  EXPECT_EQ(health_.Liveness().status, 503);
  EXPECT_EQ(health_.Liveness().body,
            "{\"status\":\"stuck\",\"seconds_since_last_turn\":61}");
  EXPECT_EQ(health_.Readiness().status, 503);
  EXPECT_EQ(health_.Readiness().body, health_.Liveness().body);

  health_.Turned({});
  EXPECT_EQ(health_.Liveness().status, 200);
  EXPECT_EQ(health_.Readiness().status, 200);
}

// As a thread that died, or hangs in a library, while the loop goes on.
TEST_F(WorkerHealthTest, ADataPlaneWithoutTicksIsStuck) {
  const auto first = health_.AddDataPlane();
  const auto second = health_.AddDataPlane();
  health_.Serve();
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(health_.Readiness().status, 200) << i;
    clock_.Advance(WorkerHealth::kStuckAfter / 2);
    health_.Turned({});
    first();
    if (i < 2) second();
  }
  clock_.Advance(absl::Seconds(1));
  EXPECT_EQ(health_.Liveness().status, 503);
  EXPECT_EQ(health_.Liveness().body,
            "{\"status\":\"stuck\",\"seconds_since_last_data_plane_tick\":61}");
  EXPECT_EQ(health_.Readiness().status, 503);
  second();
  EXPECT_EQ(health_.Liveness().status, 200);
  EXPECT_EQ(health_.Readiness().status, 200);
}

// Turns alone are no progress. Whoever restarts what is not alive need not.
TEST_F(WorkerHealthTest, ALoopThatNeverStepsThoughItHasToIsNotReady) {
  health_.Serve();
  uint64_t steps = 7;
  const auto turn = [&](bool has_work) {
    clock_.Advance(WorkerHealth::kStuckAfter / 2);
    health_.Turned({.has_work = has_work, .steps = steps});
  };
  for (int i = 0; i < 5; ++i) turn(/*has_work=*/false);
  EXPECT_EQ(health_.Readiness().status, 200);
  for (int i = 0; i < 5; ++i) {
    ++steps;
    turn(/*has_work=*/true);
  }
  EXPECT_EQ(health_.Readiness().status, 200);
  turn(/*has_work=*/true);
  turn(/*has_work=*/true);
  EXPECT_EQ(health_.Readiness().status, 200);
  turn(/*has_work=*/true);
  EXPECT_EQ(health_.Readiness().status, 503);
  EXPECT_EQ(health_.Readiness().body,
            "{\"status\":\"stuck\",\"seconds_since_last_step\":90}");
  EXPECT_EQ(health_.Liveness().status, 200);
  ++steps;
  turn(/*has_work=*/true);
  EXPECT_EQ(health_.Readiness().status, 200);
}

}  // namespace
}  // namespace baton::worker
