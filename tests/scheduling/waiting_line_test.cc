// Whose turn it is among the requests that wait for workers.
#include "scheduling/waiting_line.h"

#include <map>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/scheduling/waiting_line_fixture.h"

namespace baton::scheduling::waiting_line_test {
namespace {

using testing::ElementsAre;

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
}  // namespace baton::scheduling::waiting_line_test
