// Random streams of events: whatever workers say in whatever order, the output
// is the one right sequence, every leg ends exactly once, and the request ends.
#include <map>
#include <random>
#include <set>

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "scheduling/request_lifecycle.h"

namespace baton::scheduling::request_lifecycle_stream_test {
namespace {

using State = RequestLifecycle::State;
constexpr int32_t kMaxOutput = 12;
constexpr int32_t kMaxAttempts = 4;

// The token that every worker gives at `index`: "same answer everywhere".
TokenId TrueToken(int32_t index) { return 1000 + index; }

// Drives one lifecycle with events drawn at random, many of them late, foreign
// or wrong, and checks what comes back against its own record.
class EventStream {
 public:
  explicit EventStream(uint32_t seed)
      : random_(seed),
        life_({.max_output_tokens = kMaxOutput, .stop_token_ids = {}},
              kMaxAttempts, seed) {}

  void Run() {
    for (int i = 0; i < 400; ++i) {
      now_ += absl::Milliseconds(Draw(20));
      Apply(Next());
      life_.CheckInvariants();
      ASSERT_FALSE(testing::Test::HasFailure());
    }
    Apply(life_.Abort(absl::CancelledError("end of test")));
    life_.CheckInvariants();
    EXPECT_EQ(life_.state(), State::kDone);
    EXPECT_TRUE(finished_);
    EXPECT_TRUE(open_.empty()) << "a leg was left open";
  }

  bool completed() const { return completed_; }
  bool stopped_early() const { return stopped_ && delivered_ < kMaxOutput; }
  bool stopped_late() const { return stopped_ && delivered_ == kMaxOutput; }

 private:
  uint32_t Draw(uint32_t bound) { return random_() % bound; }

  LifecycleActions Next() {
    if (life_.state() == State::kQueued && Draw(3) != 0) return Place();
    const AttemptId attempt = Draw(8) == 0 ? AttemptId{Draw(last_attempt_ + 2)}
                                           : AttemptId{last_attempt_};
    const WorkerId from{1 + Draw(4)};
    switch (Draw(40)) {
      case 0:
        return Refuse(attempt, from);
      case 1:
        CloseIfOpen(AttemptId{last_attempt_}, from);
        return life_.WorkerLost(from, "w", now_);
      case 2:
        return life_.SettleTimedOut();
      case 3:
        return End(attempt, from,
                   {.ok = false, .error = "e", .retryable = Draw(10) != 0});
      case 4:
        return End(attempt, from, {});
      case 5:
        switch (Draw(20)) {
          case 0:
            return life_.Abort(absl::DeadlineExceededError("d"));
          case 1:
            return StopByText();
          default:
            return {};
        }
      case 6:
      case 7:
      case 8:
        return life_.Granted(attempt, from);
      default: {
        const int32_t index = static_cast<int32_t>(Draw(kMaxOutput + 2));
        return life_.TokenReported(
            attempt, from,
            {.index = index,
             .token = TrueToken(index),
             .finish = index == kMaxOutput - 1
                           ? std::optional(FinishReason::kLength)
                           : std::nullopt},
            now_);
      }
    }
  }

  LifecycleActions Place() {
    PlacementVerdict verdict;
    verdict.decode = WorkerId{3 + Draw(2)};
    verdict.kind = PlacementVerdict::Kind::kDecodeOnly;
    if (Draw(4) != 0) {
      verdict.kind = PlacementVerdict::Kind::kPrefillAndDecode;
      verdict.prefill = WorkerId{1 + Draw(2)};
    }
    return life_.Place(AttemptId{++last_attempt_}, verdict);
  }

  LifecycleActions Refuse(AttemptId attempt, WorkerId from) {
    CloseIfOpen(attempt, from);
    return life_.Refused(
        attempt, from, Draw(20) == 0 ? RefusalKind::kNever : RefusalKind::kBusy,
        "m", absl::Milliseconds(Draw(5000)), now_);
  }

  LifecycleActions End(AttemptId attempt, WorkerId from,
                       const LegOutcome& outcome) {
    CloseIfOpen(attempt, from);
    return life_.LegEnded(attempt, from, outcome, now_);
  }

  LifecycleActions StopByText() {
    if (life_.state() == State::kDone) return life_.StoppedByText();
    stopped_ = true;
    const bool was_settling = life_.state() == State::kSettling;
    LifecycleActions actions = life_.StoppedByText();
    EXPECT_EQ(life_.state(), was_settling ? State::kSettling : State::kDone);
    return actions;
  }

  // A worker that refuses, ends a leg or is lost needs no cancel.
  void CloseIfOpen(AttemptId attempt, WorkerId from) {
    if (open_.count({attempt, from}) > 0) ended_.insert({attempt, from});
  }

  void Apply(const LifecycleActions& actions) {
    for (const LifecycleAction& action : actions) {
      EXPECT_FALSE(finished_) << "an action after the last one";
      std::visit([this](const auto& a) { Take(a); }, action);
    }
  }

  void Take(const SendReserve& a) {
    EXPECT_EQ(static_cast<uint64_t>(a.attempt), last_attempt_);
    EndAttempt();
    open_.insert({a.attempt, a.decode});
  }
  void Take(const SendPrefill& a) { open_.insert({a.attempt, a.prefill}); }
  void Take(const ForwardGrant& a) {
    EXPECT_TRUE(open_.count({a.attempt, a.prefill}));
    EXPECT_TRUE(granted_.insert(a.attempt).second) << "forwarded twice";
  }
  void Take(const CancelLeg& a) {
    EXPECT_TRUE(open_.erase({a.attempt, a.worker})) << "cancelled twice";
  }
  void Take(const DeliverToken& a) {
    EXPECT_EQ(a.index, delivered_);
    EXPECT_EQ(a.token, TrueToken(a.index));
    ++delivered_;
  }
  void Take(const Requeue& a) {
    EXPECT_GE(a.retry_excluded_at, now_ + absl::Milliseconds(20));
    EXPECT_LE(a.retry_excluded_at, now_ + absl::Seconds(2));
    EXPECT_LT(a.place_at, now_ + absl::Milliseconds(800));
    EndAttempt();
  }
  void Take(const AwaitOutcomes&) {
    EXPECT_EQ(delivered_, kMaxOutput);
    EXPECT_EQ(life_.state(), State::kSettling);
  }
  void Take(const Finish& a) {
    finished_ = true;
    completed_ = a.status.ok() && !stopped_;
    EXPECT_EQ(a.status.ok(), stopped_ || delivered_ == kMaxOutput);
    if (a.status.ok()) {
      EXPECT_EQ(a.reason,
                stopped_ ? FinishReason::kStop : FinishReason::kLength);
    }
    EndAttempt();
  }

  // At the end of an attempt only legs that ended by themselves may lack a
  // cancel.
  void EndAttempt() {
    for (const auto& leg : open_) {
      EXPECT_TRUE(ended_.count(leg)) << "leg neither ended nor was cancelled";
    }
    open_.clear();
  }

  std::mt19937 random_;
  RequestLifecycle life_;
  absl::Time now_ = absl::UnixEpoch();
  uint64_t last_attempt_ = 0;
  std::set<std::pair<AttemptId, WorkerId>> open_;
  std::set<std::pair<AttemptId, WorkerId>> ended_;
  std::set<AttemptId> granted_;
  int32_t delivered_ = 0;
  bool finished_ = false;
  bool completed_ = false;
  bool stopped_ = false;
};

TEST(RequestLifecycleStreamTest, RandomEventsKeepTheInvariants) {
  int completed = 0;
  int stopped_early = 0;
  int stopped_late = 0;
  for (uint32_t seed = 0; seed < 3000; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    EventStream stream(seed);
    stream.Run();
    if (HasFailure()) return;
    completed += stream.completed();
    stopped_early += stream.stopped_early();
    stopped_late += stream.stopped_late();
  }
  // The streams are not so hostile that nothing is tested.
  EXPECT_GT(completed, 300);
  EXPECT_GT(stopped_early, 100);
  EXPECT_GT(stopped_late, 10);
}

}  // namespace
}  // namespace baton::scheduling::request_lifecycle_stream_test
