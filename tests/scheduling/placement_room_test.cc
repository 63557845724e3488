#include "scheduling/placement_room.h"

#include <string>

#include <gtest/gtest.h>

#include "scheduling/placement_policies.h"
#include "scheduling/step_budget.h"
#include "tests/scheduling/placement_cluster.h"

namespace baton::scheduling {
namespace {

// A step of n sequences takes 10 ms and n more.
WorkerSnapshot WorkerThatRuns(int32_t sequences) {
  WorkerSnapshot worker = test::DecodeWorker(WorkerId{1}, sequences);
  worker.running = sequences;
  worker.waiting = 0;
  worker.context_tokens = 0;
  worker.step_cost = {.fixed = 0.010, .per_token = 0, .per_sequence = 0.001};
  return worker;
}

// Steps of so many seconds keep the request's bound.
PlacementRequest Within(double step_seconds) {
  PlacementRequest request = test::RequestOf(100, 50);
  request.batch_itl_seconds = step_seconds / StepBudgetSeconds(1);
  return request;
}

TEST(PlacementRoomTest, ABatchGrowsAsLongAsItIsInTime) {
  EXPECT_TRUE(KeepsBatchBound(WorkerThatRuns(9), Within(0.0201)));
  EXPECT_FALSE(KeepsBatchBound(WorkerThatRuns(10), Within(0.0201)));
  // Placed, but not reported yet.
  WorkerSnapshot worker = WorkerThatRuns(9);
  worker.placed_sequences = 1;
  EXPECT_FALSE(KeepsBatchBound(worker, Within(0.0201)));
}

TEST(PlacementRoomTest, WhoHasNoBoundDoesNotMind) {
  EXPECT_TRUE(KeepsBatchBound(WorkerThatRuns(60), Within(0)));
}

TEST(PlacementRoomTest, WhatIsTooSlowAloneIsNotKeptWaiting) {
  EXPECT_TRUE(KeepsBatchBound(WorkerThatRuns(60), Within(0.0105)));
  EXPECT_FALSE(KeepsBatchBound(WorkerThatRuns(60), Within(0.0115)));
}

TEST(PlacementRoomTest, WithoutMeasuredStepsThereIsNoSuchBound) {
  WorkerSnapshot worker = WorkerThatRuns(60);
  worker.step_cost = {};
  EXPECT_TRUE(KeepsBatchBound(worker, Within(0.0201)));
}

TEST(PlacementRoomTest, WhatIsReadCounts) {
  WorkerSnapshot worker = WorkerThatRuns(1);
  worker.step_cost.per_context_token = 0.00001;
  worker.context_tokens = 700;
  // 12 ms, and 8 ms for 800 positions.
  EXPECT_TRUE(KeepsBatchBound(worker, Within(0.0201)));
  worker.context_tokens = 800;
  EXPECT_FALSE(KeepsBatchBound(worker, Within(0.0201)));
}

// 16 tokens of it in a step at least: with 9 streams, a step of the batch with
// the request takes 20 ms, and these 15 ms more.
TEST(PlacementRoomTest, APromptBesideStreamsIsPartOfTheirSteps) {
  WorkerSnapshot worker = WorkerThatRuns(9);
  worker.step_cost = {.fixed = 0.010, .per_token = 0.001};
  ASSERT_TRUE(KeepsBatchBound(worker, Within(0.0201)));
  EXPECT_FALSE(KeepsBatchBoundBesidePrompt(worker, Within(0.0349)));
  EXPECT_TRUE(KeepsBatchBoundBesidePrompt(worker, Within(0.0351)));
  // A short prompt is over sooner.
  PlacementRequest request = Within(0.0251);
  EXPECT_FALSE(KeepsBatchBoundBesidePrompt(worker, request));
  request.prefill_tokens = 6;
  EXPECT_TRUE(KeepsBatchBoundBesidePrompt(worker, request));
  // Nobody is there to mind, nobody minds, nothing is known.
  EXPECT_TRUE(KeepsBatchBoundBesidePrompt(WorkerThatRuns(0), Within(0.001)));
  EXPECT_TRUE(KeepsBatchBoundBesidePrompt(worker, Within(0)));
  worker.step_cost = {};
  EXPECT_TRUE(KeepsBatchBoundBesidePrompt(worker, Within(0.001)));
}

// Of 1,000 blocks, the request takes 10; 250 are a quarter.
TEST(PlacementRoomTest, WhoIsLateLeavesMemoryToPrefillWorkers) {
  WorkerSnapshot worker = WorkerThatRuns(1);
  worker.free_blocks = 259;
  PlacementRequest request = test::RequestOf(100, 60);
  ASSERT_EQ(BlocksTaken(worker, request), 10);
  request.stands_by = true;
  EXPECT_TRUE(TakesFromPrefill(worker, request, /*least_queued=*/49));
  // They have enough to do.
  EXPECT_FALSE(TakesFromPrefill(worker, request, /*least_queued=*/50));
  // There is enough for all.
  worker.free_blocks = 260;
  EXPECT_FALSE(TakesFromPrefill(worker, request, /*least_queued=*/0));
  // What was placed and is not reported yet counts.
  worker.placed_blocks = 1;
  EXPECT_TRUE(TakesFromPrefill(worker, request, /*least_queued=*/0));
  // Nothing runs there that would make room.
  worker.running = 0;
  EXPECT_FALSE(TakesFromPrefill(worker, request, /*least_queued=*/0));
  // Who can be in time is worth it.
  worker.running = 1;
  request.stands_by = false;
  EXPECT_FALSE(TakesFromPrefill(worker, request, /*least_queued=*/0));
}

// All policies alike: the request waits for its turn.
TEST(PlacementRoomTest, RoomIsForWhatIsSetAsideAtOnce) {
  WorkerSnapshot worker = WorkerThatRuns(1);
  worker.block_size = 16;
  worker.total_blocks = 100;
  worker.free_blocks = 10;
  worker.placed_blocks = 0;
  const PlacementRequest request = test::RequestOf(100, 400);
  EXPECT_FALSE(DecodeHasRoom(worker, request));
  EXPECT_EQ(BlocksTaken(worker, request), 32);
  worker.output_reserve = 60;
  EXPECT_TRUE(DecodeHasRoom(worker, request));
  // And the one that is kept free for it.
  EXPECT_EQ(BlocksTaken(worker, request), 11);
  worker.output_reserve = 61;
  EXPECT_FALSE(DecodeHasRoom(worker, request));
  worker.output_reserve = 400;
  EXPECT_EQ(BlocksTaken(worker, request), 32);
  EXPECT_EQ(BlocksTaken(worker, test::RequestOf(100, 60)), 10);
}

// A millisecond for each token that is queued.
TEST(PlacementRoomTest, WhoStandsByGoesOnlyWhereLittleIsQueued) {
  for (const std::string& name : PlacementPolicyNames()) {
    const auto policy = *MakePlacementPolicy(name);
    PlacementRequest request = test::RequestOf(100, 50);
    ClusterSnapshot cluster{
        .workers = {test::PrefillWorker(WorkerId{1}, {WorkerId{3}}),
                    test::PrefillWorker(WorkerId{2}, {WorkerId{3}}),
                    test::DecodeWorker(WorkerId{3})}};
    for (WorkerSnapshot& worker : cluster.workers) worker.queued_tokens = 201;
    EXPECT_NE(policy->Place(cluster, request).kind,
              PlacementVerdict::Kind::kNone)
        << name;
    request.stands_by = true;
    EXPECT_EQ(policy->Place(cluster, request).kind,
              PlacementVerdict::Kind::kNone)
        << name;
    cluster.workers[1].queued_tokens = 199;
    EXPECT_EQ(policy->Place(cluster, request).prefill, WorkerId{2}) << name;
    request.little_seconds = 0.198;
    EXPECT_EQ(policy->Place(cluster, request).kind,
              PlacementVerdict::Kind::kNone)
        << name;
    request.little_seconds = 0.2;
    // On decode workers alone.
    cluster.workers.erase(cluster.workers.begin(), cluster.workers.begin() + 2);
    EXPECT_EQ(policy->Place(cluster, request).kind,
              PlacementVerdict::Kind::kNone)
        << name;
    cluster.workers[0].queued_tokens = 190;
    EXPECT_EQ(policy->Place(cluster, request).decode, WorkerId{3}) << name;
  }
}

TEST(PlacementRoomTest, LittleIsATenthOfTheTargetAtMost) {
  EXPECT_EQ(LittleSeconds(0), 0.2);
  EXPECT_EQ(LittleSeconds(10), 0.2);
  EXPECT_DOUBLE_EQ(LittleSeconds(0.5), 0.05);
}

TEST(PlacementRoomTest, WithoutMeasuredStepsLittleIsNothing) {
  WorkerSnapshot worker = test::PrefillWorker(WorkerId{1}, {WorkerId{2}});
  worker.step_cost = {};
  PlacementRequest request = test::RequestOf(100, 50);
  worker.queued_tokens = 1;
  EXPECT_TRUE(MayComputeThere(worker, request));
  request.stands_by = true;
  EXPECT_FALSE(MayComputeThere(worker, request));
  worker.queued_tokens = 0;
  EXPECT_TRUE(MayComputeThere(worker, request));
}

TEST(PlacementRoomTest, AWorkerThatWouldBeTooSlowIsFull) {
  ClusterSnapshot cluster;
  cluster.workers.push_back(WorkerThatRuns(10));
  for (const char* name :
       {"least-load", "power-of-two", "prefix-affine", "cost-model"}) {
    const auto policy = MakePlacementPolicy(name);
    ASSERT_TRUE(policy.ok()) << policy.status();
    PlacementVerdict verdict = (*policy)->Place(cluster, Within(0.0201));
    EXPECT_EQ(verdict.kind, PlacementVerdict::Kind::kNone) << name;
    EXPECT_EQ(verdict.reason, PlacementReason::kDecodeFull) << name;
    verdict = (*policy)->Place(cluster, Within(0.0301));
    EXPECT_EQ(verdict.decode, WorkerId{1}) << name;
  }
}

}  // namespace
}  // namespace baton::scheduling
