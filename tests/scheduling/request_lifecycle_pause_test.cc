// How long a request waits that is refused again and again.
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "scheduling/request_lifecycle.h"

namespace baton::scheduling::request_lifecycle_pause_test {
namespace {

using testing::Contains;
using testing::Each;
using testing::ElementsAre;
using testing::Gt;

constexpr WorkerId kP{1}, kD{11};
const absl::Time kNow = absl::UnixEpoch() + absl::Seconds(1000);
const PlacementVerdict kOnBoth = {
    .kind = PlacementVerdict::Kind::kPrefillAndDecode,
    .reason = PlacementReason::kLeastLoad,
    .prefill = kP,
    .decode = kD};

// One request that is refused as often as it is placed.
class Unlucky {
 public:
  explicit Unlucky(uint64_t seed)
      : life_({.max_output_tokens = 8}, /*max_attempts=*/3, seed) {}

  // Places it, has it refused, and returns the pause.
  absl::Duration Refuse(WorkerId by, RefusalKind kind = RefusalKind::kBusy) {
    const AttemptId attempt{++last_attempt_};
    life_.Place(attempt, kOnBoth);
    const LifecycleActions actions = life_.Refused(
        attempt, by, kind, "no room", absl::Milliseconds(50), kNow);
    life_.CheckInvariants();
    const auto* requeue = std::get_if<Requeue>(&actions.back());
    EXPECT_NE(requeue, nullptr);
    if (requeue == nullptr) return absl::InfiniteDuration();
    EXPECT_EQ(requeue->retry_excluded_at, kNow + absl::Milliseconds(50));
    return requeue->place_at - kNow;
  }
  std::vector<absl::Duration> Refuse(int times, WorkerId by) {
    std::vector<absl::Duration> pauses;
    for (int i = 0; i < times; ++i) pauses.push_back(Refuse(by));
    return pauses;
  }
  // Places it, and has it fail behind `tokens` tokens.
  LifecycleActions Fail(int tokens) {
    const AttemptId attempt{++last_attempt_};
    life_.Place(attempt, kOnBoth);
    for (int i = 0; i < tokens; ++i) {
      const auto index = static_cast<int32_t>(life_.output().size());
      life_.TokenReported(attempt, kD, {.index = index, .token = 5}, kNow);
    }
    return life_.LegEnded(
        attempt, kD, {.ok = false, .error = "torn", .retryable = true}, kNow);
  }

 private:
  RequestLifecycle life_;
  uint64_t last_attempt_ = 0;
};

constexpr absl::Duration kNone = absl::ZeroDuration();

TEST(RequestLifecyclePauseTest, BeginsWithTheThirdRefusalInARow) {
  Unlucky request(7);
  EXPECT_EQ(request.Refuse(kD), kNone);
  EXPECT_EQ(request.Refuse(kP), kNone);
  EXPECT_GT(request.Refuse(kP), kNone);
}

TEST(RequestLifecyclePauseTest, IsDrawnFromAWindowThatDoublesUpToABound) {
  constexpr int kRequests = 2000;
  constexpr int kRefusals = 40;
  std::vector<absl::Duration> longest(kRefusals), sum(kRefusals);
  for (uint64_t seed = 0; seed < kRequests; ++seed) {
    const std::vector<absl::Duration> pauses =
        Unlucky(seed).Refuse(kRefusals, kP);
    for (int i = 0; i < kRefusals; ++i) {
      EXPECT_GE(pauses[i], kNone);
      longest[i] = std::max(longest[i], pauses[i]);
      sum[i] += pauses[i];
    }
  }
  absl::Duration window = absl::Milliseconds(50);
  for (int i = 2; i < kRefusals; ++i) {
    EXPECT_LT(longest[i], window) << i;
    EXPECT_GT(longest[i], 0.98 * window) << i;
    EXPECT_GT(sum[i] / kRequests, 0.45 * window) << i;
    EXPECT_LT(sum[i] / kRequests, 0.55 * window) << i;
    window = std::min(2 * window, absl::Milliseconds(800));
  }
}

// Two that are in each other's way would stay there if both waited alike.
TEST(RequestLifecyclePauseTest, DiffersFromRequestToRequestAndNotFromRunToRun) {
  const std::vector<absl::Duration> one = Unlucky(1).Refuse(12, kP);
  const std::vector<absl::Duration> two = Unlucky(2).Refuse(12, kP);
  std::vector<absl::Duration> apart;
  for (size_t i = 2; i < one.size(); ++i) {
    apart.push_back(AbsDuration(one[i] - two[i]));
  }
  EXPECT_THAT(apart, Each(Gt(kNone)));
  EXPECT_THAT(apart, Contains(Gt(absl::Milliseconds(200))));
  EXPECT_EQ(Unlucky(1).Refuse(12, kP), one);
}

TEST(RequestLifecyclePauseTest, ATokenEndsTheRow) {
  Unlucky request(7);
  request.Refuse(10, kP);
  request.Fail(/*tokens=*/1);
  EXPECT_THAT(request.Refuse(2, kP), ElementsAre(kNone, kNone));
  EXPECT_GT(request.Refuse(kP), kNone);
}

TEST(RequestLifecyclePauseTest, AnAttemptThatFailsDoesNotEndTheRowNorPause) {
  Unlucky request(7);
  request.Refuse(2, kP);
  const LifecycleActions actions = request.Fail(/*tokens=*/0);
  EXPECT_LE(std::get<Requeue>(actions.back()).place_at, kNow);
  EXPECT_GT(request.Refuse(kP), kNone);
}

TEST(RequestLifecyclePauseTest, WorkersThatGoAwayCountAsWell) {
  Unlucky request(7);
  request.Refuse(kD, RefusalKind::kDraining);
  request.Refuse(kP, RefusalKind::kDraining);
  EXPECT_GT(request.Refuse(kD, RefusalKind::kDraining), kNone);
}

}  // namespace
}  // namespace baton::scheduling::request_lifecycle_pause_test
