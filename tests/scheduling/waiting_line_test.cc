#include "scheduling/waiting_line.h"

#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace baton::scheduling {
namespace {

using Verdict = WaitingLine::Admission::Verdict;
using testing::ElementsAre;

const absl::Time kStart = absl::UnixEpoch();

absl::Time At(double seconds) { return kStart + absl::Seconds(seconds); }

class WaitingLineTest : public testing::Test {
 protected:
  // Of 100 tokens; the keys count up.
  static WaitingRequest Request(uint64_t key, const std::string& tenant = "") {
    return {.key = key, .tenant = tenant, .tokens = 100};
  }
  static WaitingRequest Batch(uint64_t key) {
    WaitingRequest request = Request(key);
    request.request_class = RequestClass::kBatch;
    return request;
  }
  static WaitingRequest By(uint64_t key, double start_by) {
    WaitingRequest request = Request(key);
    request.start_by = At(start_by);
    return request;
  }
  static WaitingRequest Urgent(uint64_t key, int32_t priority) {
    WaitingRequest request = Request(key);
    request.priority = priority;
    return request;
  }

  void Make(WaitingLine::Options options) { line_.emplace(options); }
  void Join(const WaitingRequest& request, double at = 0) {
    const auto admission = line_->Admit(request, At(at));
    EXPECT_EQ(admission.verdict, Verdict::kJoined) << request.key;
    EXPECT_EQ(admission.evicted, std::nullopt) << request.key;
    line_->CheckInvariants();
  }
  // Places `most` at that time, and returns them in their order.
  std::vector<uint64_t> Place(size_t most = 1000, double at = 0) {
    std::vector<uint64_t> placed;
    while (placed.size() < most) {
      const std::optional<uint64_t> next = line_->Next(At(at));
      if (!next.has_value()) break;
      line_->Place(*next, At(at));
      line_->CheckInvariants();
      placed.push_back(*next);
    }
    line_->EndTurn(At(at));
    return placed;
  }
  // Makes the line know that 100 tokens leave each second: the line is empty
  // then, at `at` + 2.
  void Teach(uint64_t key, double at) {
    Join(Request(key), at);
    Join(Request(key + 1), at);
    line_->EndTurn(At(at));
    EXPECT_EQ(Place(1, at + 1).size(), 1u);
    EXPECT_EQ(Place(1, at + 2).size(), 1u);
  }

  std::optional<WaitingLine> line_{WaitingLine::Options()};
};

TEST_F(WaitingLineTest, AlikeOnesGoInTheOrderOfArrival) {
  for (uint64_t key : {1, 2, 3, 4}) Join(Request(key));
  EXPECT_EQ(line_->NumBefore(3), 2);
  EXPECT_EQ(line_->oldest(), 1u);
  line_->Remove(2);
  line_->Remove(2);
  EXPECT_THAT(Place(), ElementsAre(1, 3, 4));
  EXPECT_TRUE(line_->empty());
}

TEST_F(WaitingLineTest, UrgentOnesOfATenantGoFirst) {
  Join(Urgent(1, 0));
  Join(Urgent(2, 5));
  Join(Urgent(3, -1));
  Join(Urgent(4, 5));
  EXPECT_EQ(line_->NumBefore(3), 3);
  EXPECT_THAT(Place(), ElementsAre(2, 4, 1, 3));
}

TEST_F(WaitingLineTest, ResumedOnesGoBeforeAllOthers) {
  Join(Urgent(1, 100));
  Join(Request(2));
  EXPECT_THAT(Place(1), ElementsAre(1));
  Join(Urgent(3, 100));
  line_->Resume(Urgent(1, -100), At(0));
  line_->CheckInvariants();
  EXPECT_EQ(line_->size_of(Lane::kResumed), 1);
  EXPECT_EQ(line_->NumBefore(2), 2);
  EXPECT_THAT(Place(), ElementsAre(1, 3, 2));
}

TEST_F(WaitingLineTest, BatchGetsItsShareAndNoMore) {
  for (uint64_t key = 1; key <= 100; ++key) {
    Join(Batch(key));
    Join(Request(100 + key));
  }
  const std::vector<uint64_t> placed = Place(100);
  int batch = 0;
  for (const uint64_t key : placed) batch += key <= 100 ? 1 : 0;
  // 1 of 17, while nobody is late.
  EXPECT_EQ(batch, 5);
  EXPECT_EQ(Place().size(), 100u);
}

TEST_F(WaitingLineTest, WhoWasAwayHasNoCredit) {
  for (uint64_t key = 1; key <= 50; ++key) Join(Request(key, "a"));
  EXPECT_EQ(Place(20).size(), 20u);
  for (uint64_t key = 51; key <= 60; ++key) Join(Request(key, "b"));
  int b = 0;
  for (const uint64_t key : Place(10)) b += key > 50 ? 1 : 0;
  EXPECT_EQ(b, 5);
}

TEST_F(WaitingLineTest, TenantsShareByWeightWhateverTheySend) {
  // One sends few large ones, one many small ones of thrice the weight.
  std::map<uint64_t, int64_t> tokens;
  for (uint64_t key = 1; key <= 300; ++key) {
    WaitingRequest request = Request(key, key % 3 == 0 ? "large" : "small");
    request.tokens = key % 3 == 0 ? 400 : 100;
    request.weight = key % 3 == 0 ? 1 : 3;
    tokens[key] = request.tokens;
    Join(request);
  }
  int64_t large = 0;
  int64_t all = 0;
  for (const uint64_t key : Place(100)) {
    all += tokens[key];
    if (key % 3 == 0) large += tokens[key];
  }
  EXPECT_NEAR(static_cast<double>(large) / static_cast<double>(all), 0.25,
              0.03);
}

TEST_F(WaitingLineTest, WhatWasNotUsedComesBack) {
  for (uint64_t key = 1; key <= 10; ++key) {
    Join(Request(key, "a"));
    Join(Request(100 + key, "b"));
  }
  EXPECT_THAT(Place(2), ElementsAre(1, 101));
  line_->GiveBack(Lane::kOnTime, "b", 90);
  // It has paid a tenth of what the other has.
  EXPECT_THAT(Place(2), ElementsAre(102, 2));
  line_->GiveBack(Lane::kOnTime, "nobody", 90);
  line_->GiveBack(Lane::kResumed, "a", 90);
  line_->CheckInvariants();
}

TEST_F(WaitingLineTest, WhatComesBackCostsNobodyHisTurn) {
  Join(Batch(1));
  EXPECT_THAT(Place(1), ElementsAre(1));
  WaitingRequest large = Batch(2);
  large.tokens = 8000;
  Join(large);
  for (uint64_t key = 1001; key <= 1140; ++key) {
    WaitingRequest request = Request(key);
    request.tokens = 1000;
    Join(request);
  }
  EXPECT_THAT(Place(100), testing::Not(testing::Contains(2)));
  line_->GiveBack(Lane::kBatch, "", 50);
  EXPECT_THAT(Place(40), testing::Contains(2));
}

TEST_F(WaitingLineTest, LateOnesStandBackBehindThoseThatCanBeInTime) {
  Join(By(1, 1.0));
  Join(By(2, 9.0));
  Join(Request(3));
  EXPECT_EQ(line_->num_late(), 0);
  EXPECT_EQ(line_->Next(At(1.0)), 1u);
  EXPECT_EQ(line_->Next(At(1.5)), 2u);
  EXPECT_EQ(line_->num_late(), 1);
  EXPECT_EQ(line_->size_of(Lane::kLate), 1);
  line_->CheckInvariants();
  EXPECT_THAT(Place(1000, 1.5), ElementsAre(2, 3, 1));
}

// Someone waits for a late one.
TEST_F(WaitingLineTest, LateOnesGetTwiceTheShareOfBatch) {
  for (uint64_t key = 1; key <= 60; ++key) {
    Join(Batch(key));
    Join(By(100 + key, -1));
    Join(Request(200 + key));
  }
  EXPECT_EQ(line_->num_late(), 60);
  std::map<uint64_t, int> lanes;
  for (const uint64_t key : Place(57)) ++lanes[key / 100];
  EXPECT_EQ(lanes[2], 48);
  EXPECT_EQ(lanes[1], 6);
  EXPECT_EQ(lanes[0], 3);
}

TEST_F(WaitingLineTest, WhoStandsBackIsLate) {
  Join(Request(1));
  EXPECT_TRUE(line_->StandBack(1));  // There is nobody else yet.
  EXPECT_EQ(line_->Next(At(0)), 1u);
  Join(By(2, 5));
  Join(Batch(3));
  EXPECT_FALSE(line_->StandBack(1));
  EXPECT_FALSE(line_->StandBack(3));
  line_->CheckInvariants();
  EXPECT_EQ(line_->num_late(), 1);
  EXPECT_EQ(line_->size_of(Lane::kLate), 1);
  EXPECT_THAT(Place(), ElementsAre(2, 1, 3));
}

// Of 18 tokens, two are for late ones: what is more, they take from those that
// are yet to come.
TEST_F(WaitingLineTest, LateOnesStandByOnceTheyHadTheirShare) {
  for (uint64_t key = 1; key <= 9; ++key) Join(By(key, -1));
  EXPECT_TRUE(line_->StandsBy(1));
  for (uint64_t key = 11; key <= 18; ++key) Join(Request(key));
  EXPECT_FALSE(line_->StandsBy(11));
  for (uint64_t key = 11; key <= 18; ++key) line_->Place(key, At(0));
  // Nobody is on time here, but eight were.
  EXPECT_EQ(line_->Next(At(0)), 1u);
  EXPECT_FALSE(line_->StandsBy(1));
  line_->Place(1, At(0));
  EXPECT_TRUE(line_->StandsBy(2));
}

// Batch that is placed moves time on, too: nobody who is late waits for ever.
TEST_F(WaitingLineTest, ALateOneStandsByNoLongerThanItsShareOfBatch) {
  Join(By(1, -1));
  EXPECT_TRUE(line_->StandsBy(1));
  for (uint64_t key = 11; key <= 30; ++key) Join(Batch(key));
  uint64_t batch = 11;
  for (; batch <= 30 && line_->StandsBy(1); ++batch) {
    line_->Place(batch, At(0));
  }
  EXPECT_FALSE(line_->StandsBy(1));
  EXPECT_LE(batch, 20u);
}

TEST_F(WaitingLineTest, BatchThatComesAgainGivesWay) {
  line_->Resume(Batch(1), At(0));
  line_->Resume(Request(2), At(0));
  Join(Batch(3));
  EXPECT_TRUE(line_->GivesWay(1));
  EXPECT_FALSE(line_->GivesWay(2));
  EXPECT_FALSE(line_->GivesWay(3));
}

TEST_F(WaitingLineTest, WhereNoLateOneCanBePlacedTheOthersGoOn) {
  Join(By(1, -1));
  Join(By(2, -1));
  Join(Batch(3));
  EXPECT_EQ(line_->Next(At(0)), 1u);
  line_->SetLateAside();
  EXPECT_EQ(line_->Next(At(0)), 3u);
  Join(Request(4));
  EXPECT_EQ(line_->Next(At(0)), 4u);
  line_->Place(4, At(0));
  line_->Place(3, At(0));
  EXPECT_EQ(line_->Next(At(0)), std::nullopt);
  EXPECT_EQ(line_->size(), 2u);
  line_->CheckInvariants();
  line_->EndTurn(At(0));
  EXPECT_THAT(Place(), ElementsAre(1, 2));
}

TEST_F(WaitingLineTest, ThoseSetAsideHoldNobodyBack) {
  for (uint64_t key : {1, 2, 3}) Join(Request(key));
  line_->SetAside(1);
  line_->CheckInvariants();
  EXPECT_EQ(line_->Next(At(0)), 2u);
  line_->SetAside(2);
  EXPECT_EQ(line_->Next(At(0)), 3u);
  line_->Remove(2);
  line_->Place(3, At(0));
  EXPECT_EQ(line_->Next(At(0)), std::nullopt);
  EXPECT_EQ(line_->size(), 1u);
  line_->EndTurn(At(0));
  line_->CheckInvariants();
  EXPECT_THAT(Place(), ElementsAre(1));
}

TEST_F(WaitingLineTest, OneThatIsSetAsideCanBecomeLate) {
  Join(By(1, 1.0));
  Join(Request(2));
  line_->SetAside(1);
  EXPECT_EQ(line_->Next(At(2)), 2u);
  line_->CheckInvariants();
  line_->EndTurn(At(2));
  line_->CheckInvariants();
  EXPECT_EQ(line_->size_of(Lane::kLate), 1);
}

TEST_F(WaitingLineTest, AFullLineRefuses) {
  Make({.max_requests = 2});
  Teach(1, 0);
  Join(Request(3), 2);
  Join(Request(4), 2);
  EXPECT_TRUE(line_->IsTightFor(Request(5), At(2)));
  const auto admission = line_->Admit(Request(5), At(2));
  EXPECT_EQ(admission.verdict, Verdict::kFull);
  // 200 tokens are before it, 100 leave each second.
  EXPECT_NEAR(absl::ToDoubleSeconds(admission.retry_after), 2.0, 0.2);
  EXPECT_FALSE(line_->contains(5));
  // Who has had a turn is never refused.
  line_->Resume(Request(6), At(2));
  EXPECT_EQ(line_->size(), 3u);
}

TEST_F(WaitingLineTest, WithoutExperienceTheHintIsASecond) {
  Make({.max_requests = 1});
  Join(Request(1));
  EXPECT_EQ(line_->Admit(Request(2), At(0)).retry_after, absl::Seconds(1));
}

TEST_F(WaitingLineTest, AFullLineMakesRoomForTheFirstLane) {
  Make({.max_requests = 3});
  Join(Batch(1));
  Join(Batch(2));
  Join(Request(3));
  EXPECT_EQ(line_->Admit(Request(4), At(0)).evicted, 2u);
  EXPECT_EQ(line_->Admit(Batch(5), At(0)).verdict, Verdict::kFull);
  EXPECT_EQ(line_->Admit(Request(6), At(0)).evicted, 1u);
  EXPECT_EQ(line_->Admit(Request(7), At(0)).verdict, Verdict::kFull);
  line_->CheckInvariants();
  EXPECT_THAT(Place(), ElementsAre(3, 4, 6));
}

TEST_F(WaitingLineTest, BatchMakesRoomBeforeThoseThatAreLate) {
  Make({.max_requests = 2});
  Join(By(1, -1));
  Join(Batch(2));
  EXPECT_EQ(line_->Admit(Request(3), At(0)).evicted, 2u);
  EXPECT_EQ(line_->Admit(By(4, -1), At(0)).verdict, Verdict::kFull);
  EXPECT_EQ(line_->Admit(Request(5), At(0)).evicted, 1u);
  line_->CheckInvariants();
}

TEST_F(WaitingLineTest, NoTenantFillsTheLineAlone) {
  Make({.max_requests = 4});
  for (uint64_t key : {1, 2, 3, 4}) Join(Request(key, "greedy"));
  EXPECT_EQ(line_->Admit(Request(5, "modest"), At(0)).evicted, 4u);
  EXPECT_EQ(line_->Admit(Request(6, "modest"), At(0)).evicted, 3u);
  // Each has half of it now.
  EXPECT_EQ(line_->Admit(Request(7, "modest"), At(0)).verdict, Verdict::kFull);
  EXPECT_EQ(line_->Admit(Request(8, "greedy"), At(0)).verdict, Verdict::kFull);
  line_->CheckInvariants();
}

TEST_F(WaitingLineTest, ATenantsUrgentRequestTakesThePlaceOfItsLeast) {
  Make({.max_requests = 2});
  Join(Urgent(1, 1));
  Join(Urgent(2, 3));
  EXPECT_EQ(line_->Admit(Urgent(3, 1), At(0)).verdict, Verdict::kFull);
  EXPECT_EQ(line_->Admit(Urgent(4, 2), At(0)).evicted, 1u);
}

TEST_F(WaitingLineTest, WhatCannotBeInTimeIsLateAndThenRefused) {
  Make({.max_late = 1});
  Teach(1, 0);
  for (uint64_t key = 3; key <= 12; ++key) Join(Request(key), 2);
  // A thousand tokens go before it: ten seconds.
  EXPECT_NEAR(absl::ToDoubleSeconds(line_->PredictedWait(Request(13))), 10, 1);
  EXPECT_FALSE(line_->IsTightFor(By(13, 20), At(2)));
  Join(By(13, 20), 2);
  EXPECT_EQ(line_->size_of(Lane::kOnTime), 11);
  EXPECT_TRUE(line_->IsTightFor(By(14, 6), At(2)));
  Join(By(14, 6), 2);
  EXPECT_EQ(line_->size_of(Lane::kLate), 1);
  EXPECT_EQ(line_->num_late(), 1);
  const auto admission = line_->Admit(By(15, 6), At(2));
  EXPECT_EQ(admission.verdict, Verdict::kLate);
  // 1,100 tokens and a share of the late one's are before it, of which 400
  // would do.
  EXPECT_NEAR(absl::ToDoubleSeconds(admission.retry_after), 8, 1);
  // Nobody waits for a batch request.
  WaitingRequest batch = By(16, 6);
  batch.request_class = RequestClass::kBatch;
  Join(batch, 2);
}

TEST_F(WaitingLineTest, AnIdleLineTakesWhatIsLate) {
  Make({.max_late = 0});
  Join(By(1, -1));
  EXPECT_EQ(line_->Admit(By(2, -1), At(0)).verdict, Verdict::kLate);
  EXPECT_THAT(Place(), ElementsAre(1));
}

TEST_F(WaitingLineTest, ATenantWithLittleInLineWaitsLess) {
  Teach(1, 0);
  for (uint64_t key = 3; key <= 22; ++key) Join(Request(key, "greedy"), 2);
  EXPECT_NEAR(absl::ToDoubleSeconds(line_->PredictedWait(Request(23, "other"))),
              1, 0.2);
  EXPECT_NEAR(
      absl::ToDoubleSeconds(line_->PredictedWait(Request(23, "greedy"))), 20,
      2);
}

TEST(DrainRateTest, CountsOnlyWhileSomeWait) {
  DrainRate rate;
  rate.Left(1000, At(0));
  EXPECT_EQ(rate.tokens_per_second(), 0);
  rate.Begin(At(0));
  rate.Begin(At(1));  // The first counts.
  rate.Left(100, At(2));
  EXPECT_NEAR(rate.tokens_per_second(), 50, 1e-9);
  rate.End();
  rate.Left(1000, At(100));
  EXPECT_NEAR(rate.tokens_per_second(), 50, 1e-9);
  // It follows what has changed.
  rate.Begin(At(100));
  for (int i = 1; i <= 100; ++i) rate.Left(100, At(100 + i * 0.5));
  EXPECT_NEAR(rate.tokens_per_second(), 200, 5);
}

// Whatever comes and goes: nobody is lost or placed twice, the bound holds, and
// everyone has a turn in the end.
TEST(WaitingLineRandomTest, KeepsItsInvariants) {
  for (uint32_t seed = 1; seed <= 60; ++seed) {
    std::mt19937 random(seed);
    const auto draw = [&](uint32_t most) {
      return static_cast<int64_t>(random() % most);
    };
    const int32_t bound = static_cast<int32_t>(1 + draw(20));
    WaitingLine line({.max_requests = bound,
                      .max_late = static_cast<int32_t>(draw(6)),
                      .on_time_weight = static_cast<int32_t>(1 + draw(9)),
                      .late_weight = static_cast<int32_t>(1 + draw(3)),
                      .batch_weight = static_cast<int32_t>(1 + draw(3))});
    std::map<uint64_t, WaitingRequest> waiting;
    std::map<uint64_t, WaitingRequest> placed;
    uint64_t last = 0;
    double now = 0;
    for (int step = 0; step < 400; ++step) {
      now += 0.01 * static_cast<double>(draw(30));
      switch (draw(8)) {
        case 0:
        case 1:
        case 2: {
          WaitingRequest request{
              .key = ++last,
              .request_class = draw(3) == 0 ? RequestClass::kBatch
                                            : RequestClass::kInteractive,
              .priority = static_cast<int32_t>(draw(3)) - 1,
              .tenant = std::string(1, static_cast<char>('a' + draw(4))),
              .weight = static_cast<int32_t>(1 + draw(3)),
              .tokens = 1 + draw(500)};
          if (draw(2) == 0) request.start_by = At(now + draw(10));
          const bool tight = line.IsTightFor(request, At(now));
          const auto admission = line.Admit(request, At(now));
          const bool joined = admission.verdict == Verdict::kJoined;
          EXPECT_EQ(line.contains(request.key), joined);
          if (joined) waiting[request.key] = request;
          if (admission.evicted.has_value()) {
            ASSERT_TRUE(joined);
            ASSERT_EQ(waiting.erase(*admission.evicted), 1u);
          }
          if (!joined || admission.evicted.has_value()) {
            EXPECT_GT(admission.retry_after, absl::ZeroDuration());
            if (request.request_class == RequestClass::kInteractive) {
              EXPECT_TRUE(tight) << seed;
            }
          }
          break;
        }
        case 3:
        case 4: {
          const auto next = line.Next(At(now));
          ASSERT_EQ(next.has_value(), !waiting.empty());
          if (!next.has_value()) break;
          placed.insert(waiting.extract(*next));
          const Lane lane = line.Place(*next, At(now));
          if (draw(2) == 0) {
            line.GiveBack(lane, placed[*next].tenant,
                          draw(static_cast<uint32_t>(placed[*next].tokens)));
          }
          line.EndTurn(At(now));
          break;
        }
        case 5: {
          const auto next = line.Next(At(now));
          if (next.has_value()) line.SetAside(*next);
          line.CheckInvariants();
          line.EndTurn(At(now));
          break;
        }
        case 6:
          if (waiting.empty()) break;
          line.Remove(waiting.begin()->first);
          waiting.erase(waiting.begin());
          break;
        case 7:
          if (placed.empty()) break;
          line.Resume(placed.begin()->second, At(now));
          waiting.insert(placed.extract(placed.begin()));
          break;
      }
      line.CheckInvariants();
      ASSERT_EQ(line.size(), waiting.size()) << seed;
      EXPECT_LE(line.size_of(Lane::kOnTime) + line.size_of(Lane::kLate) +
                    line.size_of(Lane::kBatch),
                bound);
    }
    while (const auto next = line.Next(At(now))) {
      line.Place(*next, At(now));
      ASSERT_EQ(waiting.erase(*next), 1u);
    }
    EXPECT_TRUE(waiting.empty());
    EXPECT_TRUE(line.empty());
  }
}

}  // namespace
}  // namespace baton::scheduling
