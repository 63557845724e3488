// Whom there is room for in the line, who makes room for others, and how long a
// wait will be.
#include <cstdint>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/time/time.h"
#include "scheduling/waiting_line.h"
#include "tests/scheduling/waiting_line_fixture.h"

namespace baton::scheduling::waiting_line_test {
namespace {

using testing::ElementsAre;

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

}  // namespace
}  // namespace baton::scheduling::waiting_line_test
