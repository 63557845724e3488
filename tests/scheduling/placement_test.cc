#include "scheduling/placement.h"

#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace baton::scheduling {
namespace {

using Kind = PlacementVerdict::Kind;

constexpr WorkerId kP1{1}, kP2{2}, kD1{11}, kD2{12}, kD3{13};

WorkerSnapshot Decode(WorkerId id) {
  return {.id = id,
          .role = WorkerRole::kDecode,
          .usable = true,
          .block_size = 16,
          .total_blocks = 100,
          .max_sequences = 10,
          .max_context = 1024,
          .free_blocks = 100};
}

WorkerSnapshot Prefill(WorkerId id, std::vector<WorkerId> paired_with) {
  return {.id = id,
          .role = WorkerRole::kPrefill,
          .usable = true,
          .block_size = 16,
          .total_blocks = 100,
          .max_sequences = 10,
          .max_context = 1024,
          .max_queued_tokens = 1000,
          .free_blocks = 100,
          .paired_with = std::move(paired_with)};
}

PlacementRequest Request(int32_t prefill_tokens, int32_t total_tokens) {
  return {.prefill_tokens = prefill_tokens, .total_tokens = total_tokens};
}

PlacementVerdict Place(const ClusterSnapshot& cluster,
                       const PlacementRequest& request) {
  return LeastLoadPlacement().Place(cluster, request);
}

TEST(BlocksForTest, RoundsUp) {
  EXPECT_EQ(BlocksFor(0, 16), 0);
  EXPECT_EQ(BlocksFor(1, 16), 1);
  EXPECT_EQ(BlocksFor(16, 16), 1);
  EXPECT_EQ(BlocksFor(17, 16), 2);
  EXPECT_EQ(BlocksFor(2147483647, 1), 2147483647);
}

TEST(PlacementTest, EmptyClusterNamesTheMissingDecodeWorker) {
  EXPECT_EQ(Place({}, Request(8, 16)).kind, Kind::kNone);
  EXPECT_EQ(Place({}, Request(8, 16)).reason, PlacementReason::kNoDecodeWorker);
  // A prefill worker alone can serve nothing.
  const ClusterSnapshot only_prefill{.workers = {Prefill(kP1, {})}};
  EXPECT_EQ(Place(only_prefill, Request(8, 16)).reason,
            PlacementReason::kNoDecodeWorker);
}

TEST(PlacementTest, UnusableWorkersAreNeverPlaced) {
  ClusterSnapshot cluster{
      .workers = {Prefill(kP1, {kD1, kD2}), Decode(kD1), Decode(kD2)}};
  cluster.workers[1].usable = false;
  for (cluster.round = 0; cluster.round < 4; ++cluster.round) {
    EXPECT_EQ(Place(cluster, Request(8, 16)).decode, kD2);
  }
  cluster.workers[0].usable = false;
  const PlacementVerdict verdict = Place(cluster, Request(8, 16));
  EXPECT_EQ(verdict.kind, Kind::kDecodeOnly);
  EXPECT_EQ(verdict.prefill, kNoWorker);
  EXPECT_EQ(verdict.decode, kD2);
  EXPECT_EQ(verdict.reason, PlacementReason::kNoPrefillWorker);
}

TEST(PlacementTest, TakesTheLeastLoadedDecodeWorkerByBlocksAndSequences) {
  ClusterSnapshot cluster{.workers = {Prefill(kP1, {kD1, kD2, kD3}),
                                      Decode(kD1), Decode(kD2), Decode(kD3)}};
  cluster.workers[1].free_blocks = 60;  // 0.4 + 0.0
  cluster.workers[2].running = 2;       // 0.1 + 0.2
  cluster.workers[2].free_blocks = 90;
  cluster.workers[3].running = 5;  // 0.0 + 0.5
  EXPECT_EQ(Place(cluster, Request(8, 16)).decode, kD2);
  cluster.workers[2].waiting = 2;  // 0.1 + 0.4
  EXPECT_EQ(Place(cluster, Request(8, 16)).decode, kD1);
}

TEST(PlacementTest, CountsWhatWasPlacedSinceTheLastReport) {
  ClusterSnapshot cluster{
      .workers = {Prefill(kP1, {kD1, kD2}), Decode(kD1), Decode(kD2)}};
  cluster.workers[2].running = 1;
  EXPECT_EQ(Place(cluster, Request(8, 16)).decode, kD1);
  cluster.workers[1].placed_sequences = 1;
  cluster.workers[1].placed_blocks = 5;
  EXPECT_EQ(Place(cluster, Request(8, 16)).decode, kD2);
  // What ended since the report counts too.
  cluster.workers[1].placed_sequences = -1;
  cluster.workers[1].placed_blocks = -5;
  EXPECT_EQ(Place(cluster, Request(8, 16)).decode, kD1);
}

TEST(PlacementTest, TakesThePrefillWorkerWithTheFewestQueuedTokens) {
  ClusterSnapshot cluster{
      .workers = {Prefill(kP1, {kD1}), Prefill(kP2, {kD1}), Decode(kD1)}};
  cluster.workers[0].queued_tokens = 100;
  EXPECT_EQ(Place(cluster, Request(8, 16)).prefill, kP2);
  cluster.workers[1].placed_tokens = 101;
  EXPECT_EQ(Place(cluster, Request(8, 16)).prefill, kP1);
}

TEST(PlacementTest, OnlyPairedWorkersAreCombined) {
  ClusterSnapshot cluster{.workers = {Prefill(kP1, {kD1}), Prefill(kP2, {kD2}),
                                      Decode(kD1), Decode(kD2)}};
  cluster.workers[0].queued_tokens = 500;
  cluster.workers[3].running = 3;
  // D1 is the better decode worker and only P1 is paired with it.
  const PlacementVerdict verdict = Place(cluster, Request(8, 16));
  EXPECT_EQ(verdict.kind, Kind::kPrefillAndDecode);
  EXPECT_EQ(verdict.decode, kD1);
  EXPECT_EQ(verdict.prefill, kP1);
}

TEST(PlacementTest, EqualWorkersTakeTurns) {
  ClusterSnapshot cluster{.workers = {Prefill(kP1, {kD1, kD2}),
                                      Prefill(kP2, {kD1, kD2}), Decode(kD1),
                                      Decode(kD2)}};
  std::map<WorkerId, int> placed;
  for (cluster.round = 0; cluster.round < 10; ++cluster.round) {
    const PlacementVerdict verdict = Place(cluster, Request(8, 16));
    ++placed[verdict.prefill];
    ++placed[verdict.decode];
  }
  EXPECT_THAT(placed, testing::UnorderedElementsAre(
                          testing::Pair(kP1, 5), testing::Pair(kP2, 5),
                          testing::Pair(kD1, 5), testing::Pair(kD2, 5)));
}

TEST(PlacementTest, FullDecodeWorkersAreNotPlaced) {
  ClusterSnapshot cluster{
      .workers = {Prefill(kP1, {kD1, kD2}), Decode(kD1), Decode(kD2)}};
  cluster.workers[1].free_blocks = 1;  // 17 tokens need two
  cluster.workers[2].running = 5;      // much more loaded, but has room
  EXPECT_EQ(Place(cluster, Request(8, 17)).decode, kD2);
  EXPECT_EQ(Place(cluster, Request(8, 16)).decode, kD2);
  cluster.workers[2].waiting = 4;
  cluster.workers[2].placed_sequences = 1;  // the tenth
  EXPECT_EQ(Place(cluster, Request(8, 16)).decode, kD1);
  const PlacementVerdict verdict = Place(cluster, Request(8, 17));
  EXPECT_EQ(verdict.kind, Kind::kNone);
  EXPECT_EQ(verdict.reason, PlacementReason::kDecodeFull);
}

TEST(PlacementTest, PrefillQueueHasABoundButAnIdleWorkerTakesAnything) {
  ClusterSnapshot cluster{.workers = {Prefill(kP1, {kD1}), Decode(kD1)}};
  cluster.workers[0].max_queued_tokens = 100;
  EXPECT_EQ(Place(cluster, Request(500, 600)).kind, Kind::kPrefillAndDecode);
  cluster.workers[0].queued_tokens = 60;
  EXPECT_EQ(Place(cluster, Request(40, 60)).kind, Kind::kPrefillAndDecode);
  const PlacementVerdict verdict = Place(cluster, Request(41, 60));
  EXPECT_EQ(verdict.kind, Kind::kNone);
  EXPECT_EQ(verdict.reason, PlacementReason::kPrefillFull);
  cluster.workers[0].max_queued_tokens = 0;
  EXPECT_EQ(Place(cluster, Request(41, 60)).kind, Kind::kPrefillAndDecode);
}

TEST(PlacementTest, RequestsThatNoWorkerCouldEverHoldAreTooLarge) {
  ClusterSnapshot cluster{.workers = {Prefill(kP1, {kD1}), Decode(kD1)}};
  cluster.workers[1].running =
      10;  // full as well: too large is the better word
  EXPECT_EQ(Place(cluster, Request(8, 1025)).reason,
            PlacementReason::kTooLarge);
  cluster.workers[1].max_context = 4096;
  EXPECT_EQ(Place(cluster, Request(8, 1601)).reason,
            PlacementReason::kTooLarge);
  EXPECT_EQ(Place(cluster, Request(8, 1600)).reason,
            PlacementReason::kDecodeFull);
}

TEST(PlacementTest, PromptTooLargeForThePrefillPoolIsPrefilledLocally) {
  ClusterSnapshot cluster{.workers = {Prefill(kP1, {kD1}), Decode(kD1)}};
  cluster.workers[0].total_blocks = 4;
  EXPECT_EQ(Place(cluster, Request(64, 80)).kind, Kind::kPrefillAndDecode);
  EXPECT_EQ(Place(cluster, Request(65, 80)).kind, Kind::kDecodeOnly);
}

TEST(PlacementTest, LocalPrefillWaitsWhilePairingIsPending) {
  ClusterSnapshot cluster{.workers = {Decode(kD1)},
                          .allow_local_prefill = false};
  EXPECT_EQ(Place(cluster, Request(8, 16)).reason,
            PlacementReason::kPairingPending);
  cluster.allow_local_prefill = true;
  EXPECT_EQ(Place(cluster, Request(8, 16)).kind, Kind::kDecodeOnly);
}

// Others shall not wait for such a request.
TEST(PlacementTest, WithoutLocalPrefillExcludedPrefillWorkersAreTheLastResort) {
  ClusterSnapshot cluster{.workers = {Prefill(kP1, {kD1}), Decode(kD1)},
                          .allow_local_prefill = false};
  cluster.workers[0].total_blocks = 4;
  const WorkerId excluded[] = {kP1};
  PlacementRequest request = Request(8, 16);
  request.excluded = excluded;
  EXPECT_EQ(Place(cluster, request).reason, PlacementReason::kOnlyExcluded);
  request.allow_excluded_decode = true;
  EXPECT_EQ(Place(cluster, request).prefill, kP1);
  EXPECT_EQ(Place(cluster, Request(65, 80)).reason,
            PlacementReason::kTooLarge);
}

TEST(PlacementTest, ExcludedDecodeWorkerIsTheLastResort) {
  ClusterSnapshot cluster{
      .workers = {Prefill(kP1, {kD1, kD2}), Decode(kD1), Decode(kD2)}};
  cluster.workers[2].running = 8;
  const WorkerId excluded[] = {kD1};
  PlacementRequest request = Request(8, 16);
  request.excluded = excluded;
  EXPECT_EQ(Place(cluster, request).decode, kD2);

  cluster.workers[2].usable = false;
  EXPECT_EQ(Place(cluster, request).reason, PlacementReason::kOnlyExcluded);
  request.allow_excluded_decode = true;
  EXPECT_EQ(Place(cluster, request).decode, kD1);

  // Also when the other one is full.
  cluster.workers[2].usable = true;
  cluster.workers[2].running = 10;
  EXPECT_EQ(Place(cluster, request).decode, kD1);
  request.allow_excluded_decode = false;
  EXPECT_EQ(Place(cluster, request).reason, PlacementReason::kDecodeFull);
}

TEST(PlacementTest, ExcludedPrefillWorkerLeavesTheOtherOrLocalPrefill) {
  ClusterSnapshot cluster{
      .workers = {Prefill(kP1, {kD1}), Prefill(kP2, {kD1}), Decode(kD1)}};
  const WorkerId excluded[] = {kP1};
  PlacementRequest request = Request(8, 16);
  request.excluded = excluded;
  cluster.workers[1].queued_tokens = 900;
  EXPECT_EQ(Place(cluster, request).prefill, kP2);
  cluster.workers[1].usable = false;
  EXPECT_EQ(Place(cluster, request).kind, Kind::kDecodeOnly);
}

TEST(MissesTtftTargetTest, IsStricterWithPrefillWorkers) {
  PlacementRequest request;
  PlacementVerdict verdict;
  verdict.kind = PlacementVerdict::Kind::kPrefillAndDecode;
  verdict.predicted_ttft_seconds = 0.97;
  EXPECT_FALSE(MissesTtftTarget(request, verdict));
  request.ttft_target_seconds = 1;
  EXPECT_TRUE(MissesTtftTarget(request, verdict));
  verdict.kind = PlacementVerdict::Kind::kDecodeOnly;
  EXPECT_FALSE(MissesTtftTarget(request, verdict));
  verdict.predicted_ttft_seconds = 1.01;
  EXPECT_TRUE(MissesTtftTarget(request, verdict));
  verdict.kind = PlacementVerdict::Kind::kPrefillAndDecode;
  verdict.predicted_ttft_seconds = 0.94;
  EXPECT_FALSE(MissesTtftTarget(request, verdict));
}

TEST(LeastLoadPlacementTest, ASlowLinkIsTakenOnlyWhenTheOtherIsBusier) {
  ClusterSnapshot cluster;
  cluster.workers = {Prefill(kP1, {kD1}), Prefill(kP2, {kD1}), Decode(kD1)};
  cluster.workers[0].link_bandwidth = {1e9};
  cluster.workers[1].link_bandwidth = {10e9};
  for (cluster.round = 0; cluster.round < 4; ++cluster.round) {
    EXPECT_EQ(Place(cluster, Request(100, 200)).prefill, kP2);
  }
  cluster.workers[1].queued_tokens = 10;
  EXPECT_EQ(Place(cluster, Request(100, 200)).prefill, kP1);
  // Much alike, or not measured: they take turns.
  cluster.workers[1].queued_tokens = 0;
  for (double bandwidth : {6e9, 0.0}) {
    cluster.workers[0].link_bandwidth = {bandwidth};
    cluster.round = 0;
    const WorkerId first = Place(cluster, Request(100, 200)).prefill;
    cluster.round = 1;
    EXPECT_NE(Place(cluster, Request(100, 200)).prefill, first);
  }
}

using Standing = PlacementCandidate::Standing;

std::map<WorkerId, Standing> Standings(const ClusterSnapshot& cluster,
                                       const PlacementRequest& request,
                                       size_t most = 64) {
  std::map<WorkerId, Standing> standings;
  for (const PlacementCandidate& candidate : LeastLoadPlacement().Weigh(
           cluster, request, Place(cluster, request), most)) {
    standings[candidate.id] = candidate.standing;
  }
  return standings;
}

TEST(WeighTest, SaysWhyEachWorkerWasNotTaken) {
  constexpr WorkerId kP3{3}, kP4{4}, kP5{5}, kD4{14}, kD5{15}, kD6{16};
  ClusterSnapshot cluster{.workers = {Prefill(kP1, {kD1}), Prefill(kP2, {kD1}),
                                      Prefill(kP3, {kD2}), Prefill(kP4, {kD1}),
                                      Prefill(kP5, {kD1}), Decode(kD1),
                                      Decode(kD2), Decode(kD3), Decode(kD4),
                                      Decode(kD5), Decode(kD6)}};
  auto& workers = cluster.workers;
  workers[1].queued_tokens = 5;
  workers[2].queued_tokens = 1000;  // full, and the only one of d2
  workers[3].queued_tokens = 1000;
  workers[4].usable = false;
  workers[5].free_blocks = 50;  // d1: busier than d2, which has no prefill
  workers[7].free_blocks = 40;  // d3: busier, and not paired
  workers[8].free_blocks = 0;
  workers[9].max_context = 10;
  PlacementRequest request = Request(8, 16);
  const std::vector<WorkerId> excluded = {kD6};
  request.excluded = excluded;
  ASSERT_EQ(Place(cluster, request).decode, kD1);
  EXPECT_EQ(Standings(cluster, request),
            (std::map<WorkerId, Standing>{{kP1, Standing::kChosen},
                                          {kP2, Standing::kPassedOver},
                                          {kP3, Standing::kNotPaired},
                                          {kP4, Standing::kNoRoom},
                                          {kP5, Standing::kUnusable},
                                          {kD1, Standing::kChosen},
                                          {kD2, Standing::kNotPaired},
                                          {kD3, Standing::kPassedOver},
                                          {kD4, Standing::kNoRoom},
                                          {kD5, Standing::kTooSmall},
                                          {kD6, Standing::kExcluded}}));
}

TEST(WeighTest, TellsASlowLinkFromALongQueue) {
  ClusterSnapshot cluster{
      .workers = {Prefill(kP1, {kD1}), Prefill(kP2, {kD1}), Decode(kD1)}};
  cluster.workers[0].link_bandwidth = {1e6};
  cluster.workers[1].link_bandwidth = {1e9};
  EXPECT_EQ(Standings(cluster, Request(8, 16))[kP1], Standing::kSlowLink);
  cluster.workers[0].queued_tokens = 1;
  EXPECT_EQ(Standings(cluster, Request(8, 16))[kP1], Standing::kPassedOver);
}

TEST(WeighTest, CountsWhatWasPlacedSinceTheLastReport) {
  ClusterSnapshot cluster{.workers = {Prefill(kP1, {kD1}), Decode(kD1)}};
  cluster.workers[0].queued_tokens = 7;
  cluster.workers[0].placed_tokens = 3;
  cluster.workers[1].running = 2;
  cluster.workers[1].placed_sequences = 3;
  cluster.workers[1].placed_blocks = 25;
  const PlacementRequest request = Request(8, 16);
  const auto candidates =
      LeastLoadPlacement().Weigh(cluster, request, Place(cluster, request), 64);
  ASSERT_EQ(candidates.size(), 2u);
  EXPECT_EQ(candidates[0].role, WorkerRole::kPrefill);
  EXPECT_EQ(candidates[0].load, 10);
  EXPECT_EQ(candidates[1].sequences, 5);
  EXPECT_EQ(candidates[1].free_blocks, 75);
  EXPECT_EQ(candidates[1].total_blocks, 100);
  EXPECT_DOUBLE_EQ(candidates[1].load, 0.75);
}

TEST(WeighTest, OfManyTheNearestAreKept) {
  ClusterSnapshot cluster;
  std::vector<WorkerId> ids;
  for (uint64_t i = 0; i < 50; ++i) {
    ids.push_back(WorkerId{100 + i});
    cluster.workers.push_back(Decode(ids.back()));
    cluster.workers.back().free_blocks = 50 + static_cast<int32_t>(i);
  }
  for (uint64_t i = 0; i < 50; ++i) {
    cluster.workers.push_back(Prefill(WorkerId{1 + i}, ids));
    cluster.workers.back().queued_tokens = static_cast<int64_t>(i);
  }
  const PlacementRequest request = Request(8, 16);
  const PlacementVerdict verdict = Place(cluster, request);
  ASSERT_EQ(verdict.decode, ids.back());
  ASSERT_EQ(verdict.prefill, kP1);
  const auto few = Standings(cluster, request, 3);
  ASSERT_EQ(few.size(), 3u);
  EXPECT_EQ(few.at(verdict.decode), Standing::kChosen);
  EXPECT_EQ(few.at(verdict.prefill), Standing::kChosen);
  EXPECT_EQ(few.at(ids[48]), Standing::kPassedOver);
}

TEST(WeighTest, WithoutAVerdictItSaysWhatStoodInTheWay) {
  ClusterSnapshot cluster{.workers = {Prefill(kP1, {kD1}), Decode(kD1)}};
  cluster.workers[1].free_blocks = 0;
  EXPECT_EQ(Standings(cluster, Request(8, 16)),
            (std::map<WorkerId, Standing>{{kP1, Standing::kNotPaired},
                                          {kD1, Standing::kNoRoom}}));
}

}  // namespace
}  // namespace baton::scheduling
