#include "scheduling/request_lifecycle.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

namespace baton::scheduling::request_lifecycle_test {
namespace {

using State = RequestLifecycle::State;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr WorkerId kP{1}, kP2{2}, kD{11}, kD2{12};
constexpr AttemptId kA{101}, kB{102}, kC{103};
constexpr TokenId kStopToken = 99;
const absl::Time kNow = absl::UnixEpoch() + absl::Seconds(1000);

template <typename Id>
uint64_t N(Id id) {
  return static_cast<uint64_t>(id);
}

std::string Describe(const LifecycleAction& action) {
  struct Visitor {
    std::string operator()(const SendReserve& a) const {
      return absl::StrCat("reserve ", N(a.attempt), " on ", N(a.decode),
                          a.local_prefill() ? " local" : "");
    }
    std::string operator()(const SendPrefill& a) const {
      return absl::StrCat("prefill ", N(a.attempt), " on ", N(a.prefill));
    }
    std::string operator()(const ForwardGrant& a) const {
      return absl::StrCat("grant ", N(a.attempt), " to ", N(a.prefill));
    }
    std::string operator()(const CancelLeg& a) const {
      return absl::StrCat("cancel ", N(a.attempt), " on ", N(a.worker),
                          a.abandoned ? " abandoned" : "");
    }
    std::string operator()(const DeliverToken& a) const {
      return absl::StrCat("token ", a.index, "=", a.token);
    }
    std::string operator()(const Requeue& a) const {
      return absl::StrCat(
          "requeue +", absl::ToInt64Milliseconds(a.retry_excluded_at - kNow));
    }
    std::string operator()(const AwaitOutcomes&) const { return "await"; }
    std::string operator()(const Finish& a) const {
      return absl::StrCat("finish ", FinishReasonName(a.reason), " ",
                          absl::StatusCodeToString(a.status.code()));
    }
  };
  return std::visit(Visitor(), action);
}

std::vector<std::string> Describe(const LifecycleActions& actions) {
  std::vector<std::string> out;
  for (const LifecycleAction& action : actions) out.push_back(Describe(action));
  return out;
}

PlacementVerdict On(WorkerId prefill, WorkerId decode) {
  return {.kind = PlacementVerdict::Kind::kPrefillAndDecode,
          .reason = PlacementReason::kLeastLoad,
          .prefill = prefill,
          .decode = decode};
}

PlacementVerdict Local(WorkerId decode) {
  return {.kind = PlacementVerdict::Kind::kDecodeOnly,
          .reason = PlacementReason::kNoPrefillWorker,
          .decode = decode};
}

const LegOutcome kOk{};
const LegOutcome kTorn{.ok = false, .error = "torn", .retryable = true};
const LegOutcome kBroken{.ok = false, .error = "nan", .retryable = false};

class RequestLifecycleTest : public testing::Test {
 protected:
  explicit RequestLifecycleTest(int32_t max_output_tokens = 8)
      : life_({.max_output_tokens = max_output_tokens,
               .stop_token_ids = {kStopToken}},
              /*max_attempts=*/3, /*seed=*/1) {}
  ~RequestLifecycleTest() override { life_.CheckInvariants(); }

  std::vector<std::string> Place(AttemptId attempt,
                                 const PlacementVerdict& verdict) {
    return Check(life_.Place(attempt, verdict));
  }
  std::vector<std::string> Grant(AttemptId attempt, WorkerId from) {
    return Check(life_.Granted(attempt, from));
  }
  std::vector<std::string> Refuse(AttemptId attempt, WorkerId from,
                                  RefusalKind kind) {
    return Check(life_.Refused(attempt, from, kind, "no room",
                               absl::Milliseconds(70), kNow));
  }
  std::vector<std::string> Token(
      AttemptId attempt, WorkerId from, int32_t index, TokenId token,
      std::optional<FinishReason> finish = std::nullopt) {
    return Check(life_.TokenReported(
        attempt, from, {.index = index, .token = token, .finish = finish},
        kNow));
  }
  std::vector<std::string> End(AttemptId attempt, WorkerId from,
                               const LegOutcome& outcome) {
    return Check(life_.LegEnded(attempt, from, outcome, kNow));
  }
  std::vector<std::string> Lose(WorkerId worker) {
    return Check(life_.WorkerLost(worker, "w", kNow));
  }
  std::vector<std::string> Check(const LifecycleActions& actions) {
    life_.CheckInvariants();
    if (!actions.empty()) {
      if (const auto* finish = std::get_if<Finish>(&actions.back())) {
        final_status_ = finish->status;
      }
    }
    return Describe(actions);
  }

  RequestLifecycle life_;
  absl::Status final_status_;
};

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
