// The life of a request: its tokens, in their order, and its end.
#include "scheduling/request_lifecycle.h"

#include <cstdint>
#include <variant>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/status/status.h"
#include "tests/scheduling/request_lifecycle_fixture.h"

namespace baton::scheduling::request_lifecycle_test {
namespace {

using State = RequestLifecycle::State;
using testing::ElementsAre;
using testing::IsEmpty;

TEST_F(RequestLifecycleTest, WholeLife) {
  EXPECT_THAT(Place(kA, On(kP, kD)),
              ElementsAre("reserve 101 on 11", "prefill 101 on 1"));
  EXPECT_THAT(Grant(kA, kD), ElementsAre("grant 101 to 1"));
  EXPECT_THAT(Token(kA, kP, 0, 5), ElementsAre("token 0=5"));
  EXPECT_THAT(End(kA, kP, kOk), IsEmpty());
  EXPECT_THAT(Token(kA, kD, 1, 6), ElementsAre("token 1=6"));
  EXPECT_THAT(Token(kA, kD, 2, kStopToken, FinishReason::kStop),
              ElementsAre("token 2=99", "await"));
  EXPECT_EQ(life_.state(), State::kSettling);
  EXPECT_THAT(End(kA, kD, kOk), ElementsAre("finish stop OK"));
  EXPECT_EQ(life_.state(), State::kDone);
  EXPECT_THAT(life_.output(), ElementsAre(5, 6, kStopToken));
  EXPECT_EQ(life_.retries(), 0);
}

TEST_F(RequestLifecycleTest, LocalPrefillHasOneLeg) {
  EXPECT_THAT(Place(kA, Local(kD)), ElementsAre("reserve 101 on 11 local"));
  EXPECT_THAT(Grant(kA, kD), IsEmpty());
  EXPECT_THAT(Token(kA, kD, 0, kStopToken, FinishReason::kStop),
              ElementsAre("token 0=99", "await"));
  EXPECT_THAT(End(kA, kD, kOk), ElementsAre("finish stop OK"));
}

TEST_F(RequestLifecycleTest, FirstTokenFinishesAndCancelsTheDecodeLeg) {
  Place(kA, On(kP, kD));
  EXPECT_THAT(Token(kA, kP, 0, kStopToken, FinishReason::kStop),
              ElementsAre("token 0=99", "cancel 101 on 11", "await"));
  // The cancelled leg may have answered before it heard.
  EXPECT_THAT(Grant(kA, kD), IsEmpty());
  EXPECT_THAT(Refuse(kA, kD, RefusalKind::kBusy), IsEmpty());
  EXPECT_THAT(End(kA, kP, kOk), ElementsAre("finish stop OK"));
}

TEST_F(RequestLifecycleTest, OutcomesThatDoNotComeAreNotWaitedForLong) {
  Place(kA, On(kP, kD));
  Token(kA, kP, 0, 5);
  EXPECT_THAT(Check(life_.SettleTimedOut()), IsEmpty());  // still running
  EXPECT_THAT(Token(kA, kD, 1, kStopToken, FinishReason::kStop),
              ElementsAre("token 1=99", "await"));
  EXPECT_THAT(
      Check(life_.SettleTimedOut()),
      ElementsAre("cancel 101 on 1", "cancel 101 on 11", "finish stop OK"));
  EXPECT_THAT(End(kA, kD, kOk), IsEmpty());
  EXPECT_THAT(Check(life_.SettleTimedOut()), IsEmpty());
}

TEST_F(RequestLifecycleTest, FailureWhileSettlingDoesNotUndoTheOutput) {
  Place(kA, On(kP, kD));
  Token(kA, kP, 0, 5);
  Token(kA, kD, 1, kStopToken, FinishReason::kStop);
  EXPECT_THAT(End(kA, kP, kTorn), IsEmpty());
  EXPECT_THAT(Lose(kD), ElementsAre("finish stop OK"));
}

TEST_F(RequestLifecycleTest, GapIsHeldBackAndDuplicatesAreDropped) {
  Place(kA, On(kP, kD));
  EXPECT_THAT(Token(kA, kD, 1, 6), IsEmpty());
  EXPECT_THAT(Token(kA, kD, 2, 7), IsEmpty());
  EXPECT_THAT(Token(kA, kD, 2, 8), IsEmpty());  // the first one counts
  EXPECT_THAT(Token(kA, kP, 0, 5),
              ElementsAre("token 0=5", "token 1=6", "token 2=7"));
  EXPECT_THAT(Token(kA, kD, 1, 6), IsEmpty());
  EXPECT_THAT(Token(kA, kD, 4, 9), IsEmpty());
  EXPECT_THAT(Token(kA, kD, 3, 8), ElementsAre("token 3=8", "token 4=9"));
}

TEST_F(RequestLifecycleTest, LastTokenWaitsForTheGapToo) {
  Place(kA, On(kP, kD));
  EXPECT_THAT(Token(kA, kD, 1, kStopToken, FinishReason::kStop), IsEmpty());
  EXPECT_THAT(End(kA, kD, kOk), IsEmpty());
  EXPECT_THAT(Token(kA, kP, 0, 5),
              ElementsAre("token 0=5", "token 1=99", "await"));
  EXPECT_THAT(End(kA, kP, kOk), ElementsAre("finish stop OK"));
}

TEST_F(RequestLifecycleTest, TokenThatNeverComesFailsTheAttempt) {
  Place(kA, On(kP, kD));
  for (int index = 1; index <= 1024; ++index) {
    ASSERT_THAT(Token(kA, kD, index, 6), IsEmpty());
  }
  EXPECT_THAT(
      Token(kA, kD, 1025, 6),
      ElementsAre("cancel 101 on 1", "cancel 101 on 11", "requeue +50"));
}

TEST_F(RequestLifecycleTest, CancelReachesBothLegs) {
  Place(kA, On(kP, kD));
  EXPECT_THAT(
      Check(life_.Abort(absl::CancelledError("client is gone"))),
      ElementsAre("cancel 101 on 1 abandoned", "cancel 101 on 11 abandoned",
                  "finish cancelled CANCELLED"));
  EXPECT_THAT(Check(life_.Abort(absl::CancelledError("again"))), IsEmpty());
  EXPECT_THAT(Token(kA, kP, 0, 5), IsEmpty());
}

TEST_F(RequestLifecycleTest, CancelLeavesALegThatIsOverAlone) {
  Place(kA, On(kP, kD));
  Token(kA, kP, 0, 5);
  End(kA, kP, kOk);
  EXPECT_THAT(
      Check(life_.Abort(absl::CancelledError("client is gone"))),
      ElementsAre("cancel 101 on 11 abandoned", "finish cancelled CANCELLED"));
}

// What was computed is wasted when nobody wants it any more, and not when the
// cluster itself gives the request up.
TEST_F(RequestLifecycleTest, OnlyWhatTheClientGaveUpIsAbandoned) {
  Place(kA, On(kP, kD));
  RequestLifecycle late = life_, refused = life_;
  EXPECT_THAT(
      Describe(late.Abort(absl::DeadlineExceededError("late"))),
      ElementsAre("cancel 101 on 1 abandoned", "cancel 101 on 11 abandoned",
                  "finish error DEADLINE_EXCEEDED"));
  EXPECT_THAT(Describe(refused.Abort(absl::ResourceExhaustedError("full"))),
              ElementsAre("cancel 101 on 1", "cancel 101 on 11",
                          "finish error RESOURCE_EXHAUSTED"));
}

TEST_F(RequestLifecycleTest, DeadlineWhileQueuedAndWhileSettling) {
  EXPECT_THAT(Check(life_.Abort(absl::DeadlineExceededError("late"))),
              ElementsAre("finish error DEADLINE_EXCEEDED"));
  RequestLifecycle settling({.max_output_tokens = 1}, 1, /*seed=*/1);
  settling.Place(kA, On(kP, kD));
  settling.TokenReported(kA, kP, {.index = 0, .token = 4}, kNow);
  EXPECT_EQ(settling.state(), State::kSettling);
  // All of the answer is out: it is not turned into an error.
  EXPECT_THAT(Describe(settling.Abort(absl::DeadlineExceededError("late"))),
              ElementsAre("cancel 101 on 1", "finish length OK"));
}

TEST_F(RequestLifecycleTest, AStopStringEndsARunningRequestAtOnce) {
  Place(kA, On(kP, kD));
  Grant(kA, kD);
  Token(kA, kP, 0, 5);
  EXPECT_THAT(Token(kA, kD, 2, 7), IsEmpty());  // held
  EXPECT_THAT(
      Check(life_.StoppedByText()),
      ElementsAre("cancel 101 on 1", "cancel 101 on 11", "finish stop OK"));
  EXPECT_EQ(life_.state(), State::kDone);
  EXPECT_THAT(Token(kA, kD, 1, 6), IsEmpty());
  EXPECT_THAT(End(kA, kP, kTorn), IsEmpty());
  EXPECT_THAT(Check(life_.StoppedByText()), IsEmpty());
  EXPECT_THAT(life_.output(), ElementsAre(5));
}

TEST_F(RequestLifecycleTest, AStopStringLeavesALegThatIsOverAlone) {
  Place(kA, On(kP, kD));
  Token(kA, kP, 0, 5);
  End(kA, kP, kOk);
  Token(kA, kD, 1, 6);
  EXPECT_THAT(Check(life_.StoppedByText()),
              ElementsAre("cancel 101 on 11", "finish stop OK"));
}

TEST_F(RequestLifecycleTest, AStopStringInTheLastTokenOnlyChangesTheReason) {
  Place(kA, Local(kD));
  for (int index = 0; index < 7; ++index) Token(kA, kD, index, 5);
  EXPECT_THAT(Token(kA, kD, 7, 5), ElementsAre("token 7=5", "await"));
  EXPECT_THAT(Check(life_.StoppedByText()), IsEmpty());
  EXPECT_EQ(life_.state(), State::kSettling);
  EXPECT_THAT(End(kA, kD, kOk), ElementsAre("finish stop OK"));
}

TEST_F(RequestLifecycleTest, AStopStringEndsARequestThatWaitsAgain) {
  Place(kA, On(kP, kD));
  Token(kA, kP, 0, 5);
  EXPECT_THAT(Lose(kP), ElementsAre("cancel 101 on 11", "requeue +50"));
  EXPECT_THAT(Check(life_.StoppedByText()), ElementsAre("finish stop OK"));
}

TEST_F(RequestLifecycleTest, TheLikeliestTokensComeWithTheirToken) {
  Place(kA, On(kP, kD));
  const auto report = [&](WorkerId from, int32_t index) {
    return life_.TokenReported(
        kA, from, {.index = index, .token = 5, .top = {{index, -1}, {9, -2}}},
        kNow);
  };
  EXPECT_THAT(report(kD, 1), IsEmpty());  // held
  const LifecycleActions actions = report(kP, 0);
  ASSERT_EQ(actions.size(), 2u);
  for (int32_t index : {0, 1}) {
    const auto& token = std::get<DeliverToken>(actions[index]);
    EXPECT_EQ(token.index, index);
    EXPECT_EQ(token.top, (std::vector<TokenLogprob>{{index, -1}, {9, -2}}));
  }
}

TEST_F(RequestLifecycleTest, TheRequestsOwnLimitsHoldWhateverAWorkerSays) {
  Place(kA, Local(kD));
  for (int index = 0; index < 7; ++index) Token(kA, kD, index, 5);
  EXPECT_THAT(Token(kA, kD, 7, 5), ElementsAre("token 7=5", "await"));
  EXPECT_THAT(Token(kA, kD, 8, 5), IsEmpty());
  EXPECT_THAT(End(kA, kD, kOk), ElementsAre("finish length OK"));
}

TEST_F(RequestLifecycleTest, StrangersAreIgnored) {
  Place(kA, On(kP, kD));
  EXPECT_THAT(Grant(kA, kP), IsEmpty());  // not the decode worker
  EXPECT_THAT(Grant(kA, kD2), IsEmpty());
  EXPECT_THAT(Token(kA, kD2, 0, 5), IsEmpty());
  EXPECT_THAT(End(kA, kP2, kTorn), IsEmpty());
  EXPECT_THAT(Refuse(kB, kD, RefusalKind::kNever), IsEmpty());
  EXPECT_THAT(Lose(kD2), IsEmpty());
  EXPECT_THAT(Grant(kA, kD), ElementsAre("grant 101 to 1"));
  EXPECT_THAT(Grant(kA, kD), IsEmpty());  // once
}

using RequestLifecycleDeathTest = RequestLifecycleTest;

TEST_F(RequestLifecycleDeathTest, OurOwnMistakesAreFatal) {
  EXPECT_DEATH(life_.Place(kA, PlacementVerdict{}), "Check failed");
  EXPECT_DEATH(life_.attempt(), "Check failed");
  EXPECT_DEATH(life_.Abort(absl::OkStatus()), "Check failed");
  Place(kA, On(kP, kD));
  EXPECT_DEATH(life_.Place(kB, On(kP, kD)), "placed in state");
}

}  // namespace
}  // namespace baton::scheduling::request_lifecycle_test
