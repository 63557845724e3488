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
  EXPECT_EQ(health_.Readiness().body, "{\"status\":\"stuck\"}");

  health_.Turned();
  EXPECT_EQ(health_.Liveness().status, 200);
  EXPECT_EQ(health_.Readiness().status, 200);
}

}  // namespace
}  // namespace baton::worker
