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

TEST(AdmitReservationTest, AdmitsWhatFits) {
  EXPECT_EQ(AdmitReservation(SomeCapacity(), 10, 0, 160),
            AdmissionVerdict::kAdmit);
}

TEST(AdmitReservationTest, TellsNotNowFromNever) {
  EXPECT_EQ(AdmitReservation(SomeCapacity(), 11, 0, 176),
            AdmissionVerdict::kNoBlocks);
  EXPECT_EQ(AdmitReservation(SomeCapacity(), 101, 0, 176),
            AdmissionVerdict::kTooLarge);
  EXPECT_EQ(AdmitReservation(SomeCapacity(), 1, 0, 513),
            AdmissionVerdict::kTooLarge);
  WorkerCapacity full = SomeCapacity();
  full.num_sequences = 4;
  EXPECT_EQ(AdmitReservation(full, 1, 0, 16), AdmissionVerdict::kNoSequences);
  WorkerCapacity draining = SomeCapacity();
  draining.draining = true;
  EXPECT_EQ(AdmitReservation(draining, 1, 0, 16), AdmissionVerdict::kDraining);
}

TEST(AdmitReservationTest, WhatIsCachedNeedsNoFreeBlock) {
  EXPECT_EQ(AdmitReservation(SomeCapacity(), 15, 5, 240),
            AdmissionVerdict::kAdmit);
  EXPECT_EQ(AdmitReservation(SomeCapacity(), 15, 4, 240),
            AdmissionVerdict::kNoBlocks);
  EXPECT_EQ(AdmitReservation(SomeCapacity(), 101, 95, 240),
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
