#include "scheduling/prefix_affine_placement.h"

#include <algorithm>
#include <vector>

#include <gtest/gtest.h>

#include "scheduling/placement_room.h"
#include "tests/scheduling/placement_cluster.h"

namespace baton::scheduling::prefix_affine_placement_test {
namespace {

using test::DecodeWorker;
using test::PrefillWorker;
using test::RequestOf;
using Kind = PlacementVerdict::Kind;

constexpr WorkerId kP1{1}, kP2{2}, kD1{11}, kD2{12};

PlacementVerdict Place(const ClusterSnapshot& cluster,
                       const std::vector<CachedPrompt>& cached,
                       int32_t prompt = 400) {
  PlacementRequest request = RequestOf(prompt, 50);
  request.cached = cached;
  return PrefixAffinePlacement().Place(cluster, request);
}

TEST(PrefixAffinePlacementTest, APrefixIsWeighedAgainstTheQueue) {
  ClusterSnapshot cluster{.workers = {PrefillWorker(kP1, {kD1}),
                                      PrefillWorker(kP2, {kD1}),
                                      DecodeWorker(kD1)}};
  const std::vector<CachedPrompt> cached = {{kP1, 300}};
  cluster.workers[0].queued_tokens = 599;  // 2 * 100 + 599 < 2 * 400
  const PlacementVerdict verdict = Place(cluster, cached);
  EXPECT_EQ(verdict.prefill, kP1);
  EXPECT_EQ(verdict.cached_tokens, 300);
  EXPECT_EQ(verdict.reason, PlacementReason::kPrefixAndLoad);
  cluster.workers[0].queued_tokens = 601;
  EXPECT_EQ(Place(cluster, cached).prefill, kP2);
  EXPECT_EQ(Place(cluster, cached).cached_tokens, 0);
  // What was placed since counts like what was reported.
  cluster.workers[1].placed_tokens = 2;
  EXPECT_EQ(Place(cluster, cached).prefill, kP1);
}

TEST(PrefixAffinePlacementTest, OfEqualCostsTheLessLoadedOne) {
  ClusterSnapshot cluster{.workers = {PrefillWorker(kP1, {kD1}),
                                      PrefillWorker(kP2, {kD1}),
                                      DecodeWorker(kD1)}};
  cluster.workers[0].queued_tokens = 600;
  for (cluster.round = 0; cluster.round < 4; ++cluster.round) {
    EXPECT_EQ(Place(cluster, {{kP1, 300}}).prefill, kP2);
  }
}

TEST(PrefixAffinePlacementTest, OnADecodeWorkerAPrefixSavesATransfer) {
  ClusterSnapshot cluster{.workers = {PrefillWorker(kP1, {kD1, kD2}),
                                      DecodeWorker(kD1), DecodeWorker(kD2)}};
  // 320 of 400 tokens are worth 320 / 16 / 400 of the load: 0.05.
  const std::vector<CachedPrompt> cached = {{kD1, 320}};
  cluster.workers[1].free_blocks = 951;  // 0.049
  EXPECT_EQ(Place(cluster, cached).decode, kD1);
  cluster.workers[1].free_blocks = 949;
  EXPECT_EQ(Place(cluster, cached).decode, kD2);
}

TEST(PrefixAffinePlacementTest, OnADecodeWorkerAloneItSavesTheWork) {
  ClusterSnapshot cluster{.workers = {DecodeWorker(kD1), DecodeWorker(kD2)}};
  const std::vector<CachedPrompt> cached = {{kD1, 160}};
  cluster.workers[0].free_blocks = 201;  // 0.799 of load, 2 * 0.4 of the prompt
  const PlacementVerdict verdict = Place(cluster, cached);
  EXPECT_EQ(verdict.kind, Kind::kDecodeOnly);
  EXPECT_EQ(verdict.decode, kD1);
  EXPECT_EQ(verdict.cached_tokens, 160);
  cluster.workers[0].free_blocks = 199;
  EXPECT_EQ(Place(cluster, cached).decode, kD2);
  // Prompts that wait there count as well: 4 tokens are 0.01.
  cluster.workers[0].free_blocks = 205;
  EXPECT_EQ(Place(cluster, cached).decode, kD1);
  cluster.workers[0].queued_tokens = 4;
  EXPECT_EQ(Place(cluster, cached).decode, kD2);
}

TEST(PrefixAffinePlacementTest, AShortPromptIsNoReasonToCrowd) {
  ClusterSnapshot cluster{.workers = {DecodeWorker(kD1), DecodeWorker(kD2)}};
  // 64 of 65 tokens, in steps of 256: twice a quarter.
  const std::vector<CachedPrompt> cached = {{kD1, 64}};
  cluster.workers[0].free_blocks = 510;
  EXPECT_EQ(Place(cluster, cached, 65).decode, kD1);
  cluster.workers[0].free_blocks = 490;
  EXPECT_EQ(Place(cluster, cached, 65).decode, kD2);
}

// A prefix that all requests share, on one worker: the others get their part of
// the load.
TEST(PrefixAffinePlacementTest, OnePopularPrefixGathersNoHerd) {
  ClusterSnapshot cluster;
  for (uint64_t i = 0; i < 8; ++i) {
    cluster.workers.push_back(DecodeWorker(WorkerId{11 + i}));
  }
  for (int i = 0; i < 200; ++i) {
    const WorkerId taken = Place(cluster, {{kD1, 399}}).decode;
    WorkerSnapshot& worker = cluster.workers[static_cast<uint64_t>(taken) - 11];
    ++worker.placed_sequences;
    worker.placed_blocks += BlocksFor(450, 16);
    ++cluster.round;
  }
  double least = 2;
  double most = 0;
  for (const WorkerSnapshot& worker : cluster.workers) {
    least = std::min(least, DecodeLoad(worker));
    most = std::max(most, DecodeLoad(worker));
  }
  EXPECT_EQ(most, DecodeLoad(cluster.workers[0]));
  EXPECT_GT(least, 0.2);
  EXPECT_LT(most - least, 1.1);
}

TEST(PrefixAffinePlacementTest, HintsBeyondThePromptAreBounded) {
  const ClusterSnapshot cluster{.workers = {DecodeWorker(kD1)}};
  EXPECT_EQ(Place(cluster, {{kD1, 4000}}).cached_tokens, 399);
  EXPECT_EQ(Place(cluster, {{kD1, -5}}).cached_tokens, 0);
}

}  // namespace
}  // namespace baton::scheduling::prefix_affine_placement_test
