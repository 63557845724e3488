// Attempts that are refused or preempted, fail, or lose a worker: who is
// cancelled then, and where and when the request goes on.
#include <cstdint>
#include <variant>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "scheduling/request_lifecycle.h"
#include "tests/scheduling/request_lifecycle_fixture.h"

namespace baton::scheduling::request_lifecycle_test {
namespace {

using State = RequestLifecycle::State;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

TEST_F(RequestLifecycleTest, BusyRefusalCancelsThePrefillLegAndRequeues) {
  Place(kA, On(kP, kD));
  EXPECT_THAT(Refuse(kA, kD, RefusalKind::kBusy),
              ElementsAre("cancel 101 on 1", "requeue +70"));
  EXPECT_EQ(life_.state(), State::kQueued);
  EXPECT_THAT(life_.excluded(), ElementsAre(kD));
  EXPECT_EQ(life_.retries(), 1);
  EXPECT_THAT(Place(kB, On(kP, kD2)),
              ElementsAre("reserve 102 on 12", "prefill 102 on 1"));
  // The first attempt's late words find no owner.
  EXPECT_THAT(Token(kA, kP, 0, 7), IsEmpty());
  EXPECT_THAT(Grant(kA, kD), IsEmpty());
  EXPECT_THAT(Grant(kB, kD2), ElementsAre("grant 102 to 1"));
}

TEST_F(RequestLifecycleTest, RefusalsDoNotUseUpTheAttempts) {
  for (uint64_t i = 1; i <= 50; ++i) {
    Place(AttemptId{i}, On(kP, kD));
    EXPECT_THAT(
        Refuse(AttemptId{i}, kD, RefusalKind::kBusy),
        ElementsAre(absl::StrCat("cancel ", i, " on 1"), "requeue +70"));
  }
  EXPECT_THAT(life_.excluded(), ElementsAre(kD));
}

TEST_F(RequestLifecycleTest, BusyPrefillWorkerIsNotExcluded) {
  Place(kA, On(kP, kD));
  EXPECT_THAT(Refuse(kA, kP, RefusalKind::kBusy),
              ElementsAre("cancel 101 on 11", "requeue +70"));
  EXPECT_THAT(life_.excluded(), IsEmpty());
  Place(kB, On(kP, kD));
  Refuse(kB, kP, RefusalKind::kDraining);
  EXPECT_THAT(life_.excluded(), ElementsAre(kP));
}

TEST_F(RequestLifecycleTest, WhatCannotBeDoneAnywhereIsTheRequestsFault) {
  Place(kA, On(kP, kD));
  EXPECT_THAT(End(kA, kD, {.ok = false, .error = "d: no", .of_request = true}),
              ElementsAre("cancel 101 on 1", "finish error INVALID_ARGUMENT"));
  EXPECT_THAT(life_.excluded(), IsEmpty());
}

TEST_F(RequestLifecycleTest, PreemptionsAreNobodysFailure) {
  const LegOutcome preempted = {.ok = false,
                                .error = "d: preempted",
                                .retryable = true,
                                .preempted = true};
  for (uint64_t i = 1; i <= 200; ++i) {
    Place(AttemptId{i}, On(kP, kD));
    EXPECT_THAT(
        End(AttemptId{i}, kD, preempted),
        ElementsAre(absl::StrCat("cancel ", i, " on 1"), "requeue +20"));
    EXPECT_EQ(life_.state(), State::kQueued);
  }
  EXPECT_THAT(life_.excluded(), IsEmpty());
  EXPECT_EQ(life_.retries(), 200);
  Place(kA, On(kP, kD));
  const LifecycleActions actions = life_.LegEnded(kA, kD, preempted, kNow);
  ASSERT_EQ(actions.size(), 2u);
  EXPECT_EQ(std::get<Requeue>(actions[1]).cause, Requeue::Cause::kPreempted);
  EXPECT_EQ(std::get<Requeue>(actions[1]).why, "d: preempted");
}

TEST_F(RequestLifecycleTest, RefusalForGoodFailsTheRequest) {
  Place(kA, On(kP, kD));
  EXPECT_THAT(Refuse(kA, kD, RefusalKind::kNever),
              ElementsAre("cancel 101 on 1", "finish error INVALID_ARGUMENT"));
  EXPECT_THAT(final_status_.message(), HasSubstr("no room"));
}

TEST_F(RequestLifecycleTest, PrefillFailureCancelsTheReservationAtOnce) {
  Place(kA, On(kP, kD));
  Grant(kA, kD);
  EXPECT_THAT(End(kA, kP, kTorn),
              ElementsAre("cancel 101 on 11", "requeue +50"));
  EXPECT_THAT(life_.excluded(), ElementsAre(kP));
}

TEST_F(RequestLifecycleTest, PrefillWorkerLostAfterItsTokenIsRetriedFromThere) {
  Place(kA, On(kP, kD));
  Grant(kA, kD);
  Token(kA, kP, 0, 5);
  EXPECT_THAT(Lose(kP), ElementsAre("cancel 101 on 11", "requeue +50"));
  EXPECT_THAT(life_.output(), ElementsAre(5));
  Place(kB, On(kP2, kD));
  // The stream goes on with the next token, whoever repeats an old one.
  EXPECT_THAT(Token(kB, kP2, 0, 5), IsEmpty());
  EXPECT_THAT(Token(kB, kP2, 1, 6), ElementsAre("token 1=6"));
}

TEST_F(RequestLifecycleTest, PrefillWorkerIsNotMissedOnceDecodeSpoke) {
  Place(kA, On(kP, kD));
  Grant(kA, kD);
  Token(kA, kP, 0, 5);
  Token(kA, kD, 1, 6);
  EXPECT_THAT(Lose(kP), IsEmpty());
  EXPECT_EQ(life_.state(), State::kRunning);
  EXPECT_THAT(Token(kA, kD, 2, 7), ElementsAre("token 2=7"));
}

TEST_F(RequestLifecycleTest, FirstTokenLostWithItsWorkerIsMadeAgain) {
  Place(kA, On(kP, kD));
  Grant(kA, kD);
  EXPECT_THAT(Token(kA, kD, 1, 6), IsEmpty());
  EXPECT_THAT(Lose(kP), ElementsAre("cancel 101 on 11", "requeue +50"));
  Place(kB, Local(kD));
  EXPECT_THAT(Token(kB, kD, 0, 5), ElementsAre("token 0=5"));
  EXPECT_THAT(Token(kB, kD, 1, 6), ElementsAre("token 1=6"));
}

TEST_F(RequestLifecycleTest, PrefillEndWithoutTokenIsAFailure) {
  Place(kA, On(kP, kD));
  EXPECT_THAT(End(kA, kP, kOk), ElementsAre("cancel 101 on 11", "requeue +50"));
}

TEST_F(RequestLifecycleTest, DecodeEndWithoutLastTokenIsAFailure) {
  Place(kA, On(kP, kD));
  Token(kA, kP, 0, 5);
  End(kA, kP, kOk);
  Token(kA, kD, 1, 6);
  EXPECT_THAT(End(kA, kD, kOk), ElementsAre("requeue +50"));
  EXPECT_THAT(life_.excluded(), ElementsAre(kD));
}

TEST_F(RequestLifecycleTest, BothLegsEndedWithAGapIsAFailure) {
  Place(kA, On(kP, kD));
  EXPECT_THAT(Token(kA, kD, 2, 7), IsEmpty());
  EXPECT_THAT(End(kA, kD, kOk), IsEmpty());
  EXPECT_THAT(Token(kA, kP, 0, 5), ElementsAre("token 0=5"));
  EXPECT_THAT(End(kA, kP, kOk), ElementsAre("requeue +50"));
}

TEST_F(RequestLifecycleTest, DecodeWorkerLostMidStreamGoesOnElsewhere) {
  Place(kA, On(kP, kD));
  Grant(kA, kD);
  Token(kA, kP, 0, 5);
  End(kA, kP, kOk);
  Token(kA, kD, 1, 6);
  EXPECT_THAT(Lose(kD), ElementsAre("requeue +50"));
  Place(kB, On(kP, kD2));
  EXPECT_THAT(Grant(kB, kD2), ElementsAre("grant 102 to 1"));
  EXPECT_THAT(Token(kB, kP, 2, 7), ElementsAre("token 2=7"));
  EXPECT_THAT(Token(kB, kD2, 3, kStopToken, FinishReason::kStop),
              ElementsAre("token 3=99", "await"));
  EXPECT_EQ(life_.retries(), 1);
}

TEST_F(RequestLifecycleTest, DecodeFailureCancelsThePrefillLegAtOnce) {
  Place(kA, On(kP, kD));
  EXPECT_THAT(End(kA, kD, kTorn),
              ElementsAre("cancel 101 on 1", "requeue +50"));
  EXPECT_THAT(life_.excluded(), ElementsAre(kD));
}

TEST_F(RequestLifecycleTest, FailureThatNoOtherWorkerCanMendEndsTheRequest) {
  Place(kA, On(kP, kD));
  EXPECT_THAT(End(kA, kP, kBroken),
              ElementsAre("cancel 101 on 11", "finish error INTERNAL"));
  EXPECT_EQ(final_status_.message(), "nan");
}

TEST_F(RequestLifecycleTest, GivesUpAfterMaxAttempts) {
  Place(kA, On(kP, kD));
  EXPECT_THAT(End(kA, kP, kTorn),
              ElementsAre("cancel 101 on 11", "requeue +50"));
  Place(kB, On(kP2, kD));
  EXPECT_THAT(End(kB, kD, kTorn),
              ElementsAre("cancel 102 on 2", "requeue +100"));
  Place(kC, On(kP2, kD2));
  EXPECT_THAT(Lose(kP2),
              ElementsAre("cancel 103 on 12", "finish error UNAVAILABLE"));
  EXPECT_THAT(final_status_.message(), HasSubstr("3 failed attempts"));
  EXPECT_THAT(final_status_.message(), HasSubstr("lost worker w"));
}

}  // namespace
}  // namespace baton::scheduling::request_lifecycle_test
