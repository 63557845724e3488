#include "scheduling/admission.h"

#include "gtest/gtest.h"

namespace baton::scheduling {
namespace {

WorkerCapacity SomeCapacity() {
  WorkerCapacity capacity;
  capacity.total_blocks = 100;
  capacity.free_blocks = 10;
  capacity.max_sequences = 4;
  capacity.num_sequences = 2;
  capacity.max_context = 512;
  capacity.max_queued_tokens = 1000;
  capacity.queued_tokens = 600;
  return capacity;
}

// Of a sequence that gets all its blocks at once.
ReservationNeed Whole(int32_t blocks, int32_t cached, int32_t tokens) {
  return {.blocks = blocks,
          .cached_blocks = cached,
          .most_blocks = blocks,
          .most_tokens = tokens};
}

TEST(TokensSetAsideTest, IsAReserveAheadOrAll) {
  EXPECT_EQ(TokensSetAside(100, 1000, 0), 1000);
  EXPECT_EQ(TokensSetAside(100, 1000, 512), 612);
  EXPECT_EQ(TokensSetAside(488, 1000, 512), 1000);
  EXPECT_EQ(TokensSetAside(900, 1000, 512), 1000);
  EXPECT_EQ(TokensSetAside(1000, 1000, 1), 1000);
  EXPECT_EQ(TokensSetAside(1, 2147483647, 2147483647), 2147483647);
}

TEST(AdmitReservationTest, WhatGrowsNeedsItsBeginningNow) {
  const ReservationNeed need = {
      .blocks = 8, .most_blocks = 32, .most_tokens = 512};
  EXPECT_EQ(AdmitReservation(SomeCapacity(), need), AdmissionVerdict::kAdmit);
  WorkerCapacity capacity = SomeCapacity();
  capacity.kept_free = 2;
  EXPECT_EQ(AdmitReservation(capacity, need), AdmissionVerdict::kAdmit);
  capacity.kept_free = 3;
  EXPECT_EQ(AdmitReservation(capacity, need), AdmissionVerdict::kNoBlocks);
  // However little it begins with.
  capacity = SomeCapacity();
  capacity.total_blocks = 31;
  EXPECT_EQ(AdmitReservation(capacity, need), AdmissionVerdict::kTooLarge);
}

TEST(AdmitReservationTest, WhoWasHereComesFirst) {
  WorkerCapacity capacity = SomeCapacity();
  capacity.others_wait = true;
  EXPECT_EQ(AdmitReservation(capacity, Whole(1, 1, 16)),
            AdmissionVerdict::kNoBlocks);
}

TEST(AdmitReservationTest, AdmitsWhatFits) {
  EXPECT_EQ(AdmitReservation(SomeCapacity(), Whole(10, 0, 160)),
            AdmissionVerdict::kAdmit);
}

TEST(AdmitReservationTest, TellsNotNowFromNever) {
  EXPECT_EQ(AdmitReservation(SomeCapacity(), Whole(11, 0, 176)),
            AdmissionVerdict::kNoBlocks);
  EXPECT_EQ(AdmitReservation(SomeCapacity(), Whole(101, 0, 176)),
            AdmissionVerdict::kTooLarge);
  EXPECT_EQ(AdmitReservation(SomeCapacity(), Whole(1, 0, 513)),
            AdmissionVerdict::kTooLarge);
  WorkerCapacity full = SomeCapacity();
  full.num_sequences = 4;
  EXPECT_EQ(AdmitReservation(full, Whole(1, 0, 16)),
            AdmissionVerdict::kNoSequences);
  WorkerCapacity draining = SomeCapacity();
  draining.draining = true;
  EXPECT_EQ(AdmitReservation(draining, Whole(1, 0, 16)),
            AdmissionVerdict::kDraining);
}

TEST(AdmitReservationTest, WhatIsCachedNeedsNoFreeBlock) {
  EXPECT_EQ(AdmitReservation(SomeCapacity(), Whole(15, 5, 240)),
            AdmissionVerdict::kAdmit);
  EXPECT_EQ(AdmitReservation(SomeCapacity(), Whole(15, 4, 240)),
            AdmissionVerdict::kNoBlocks);
  EXPECT_EQ(AdmitReservation(SomeCapacity(), Whole(101, 95, 240)),
            AdmissionVerdict::kTooLarge);
}

TEST(AdmitPrefillTest, BoundsTheQueueInTokens) {
  EXPECT_EQ(AdmitPrefill(SomeCapacity(), 20, 400), AdmissionVerdict::kAdmit);
  EXPECT_EQ(AdmitPrefill(SomeCapacity(), 20, 401),
            AdmissionVerdict::kQueueFull);
  // Blocks are taken when the turn comes, so free ones do not matter here.
  WorkerCapacity busy = SomeCapacity();
  busy.free_blocks = 0;
  EXPECT_EQ(AdmitPrefill(busy, 20, 100), AdmissionVerdict::kAdmit);
  // A prompt longer than the bound is taken when it is alone.
  WorkerCapacity idle = SomeCapacity();
  idle.queued_tokens = 0;
  idle.max_queued_tokens = 10;
  EXPECT_EQ(AdmitPrefill(idle, 20, 400), AdmissionVerdict::kAdmit);
}

}  // namespace
}  // namespace baton::scheduling
