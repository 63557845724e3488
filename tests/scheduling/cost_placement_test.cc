#include "scheduling/cost_placement.h"

#include <algorithm>
#include <random>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "scheduling/placement_room.h"
#include "scheduling/step_budget.h"

namespace baton::scheduling::cost_placement_test {
namespace {

using Kind = PlacementVerdict::Kind;

constexpr WorkerId kP1{1}, kP2{2}, kD1{11}, kD2{12};
// A millisecond per prompt token, a tenth of one for each position read.
constexpr StepCost kCost = {.fixed = 0.002,
                            .per_token = 0.001,
                            .per_context_token = 1e-7,
                            .per_sequence = 0.0001,
                            .per_prompt_context_token = 1e-7};

WorkerSnapshot Decode(WorkerId id, int32_t running = 0) {
  return {.id = id,
          .role = WorkerRole::kDecode,
          .usable = true,
          .block_size = 16,
          .total_blocks = 1000,
          .max_sequences = 64,
          .max_context = 8192,
          .running = running,
          .free_blocks = 1000,
          .context_tokens = 500 * running,
          .step_cost = kCost,
          .token_budget = 256,
          .kv_bytes_per_token = 1 << 16,
          .num_layers = 16};
}

WorkerSnapshot Prefill(WorkerId id, std::vector<WorkerId> paired_with,
                       double bandwidth = 1e9) {
  WorkerSnapshot worker = {.id = id,
                           .role = WorkerRole::kPrefill,
                           .usable = true,
                           .block_size = 16,
                           .total_blocks = 1000,
                           .max_sequences = 64,
                           .max_context = 8192,
                           .free_blocks = 1000,
                           .step_cost = kCost,
                           .token_budget = 512,
                           .paired_with = std::move(paired_with)};
  worker.link_bandwidth.assign(worker.paired_with.size(), bandwidth);
  return worker;
}

PlacementRequest Request(int32_t prompt, int32_t output) {
  return {.prefill_tokens = prompt, .total_tokens = prompt + output};
}

PlacementVerdict Place(const ClusterSnapshot& cluster,
                       const PlacementRequest& request) {
  return CostModelPlacement().Place(cluster, request);
}

TEST(CostPlacementTest, AnIdleDecodeWorkerKeepsItsPrompt) {
  const ClusterSnapshot cluster{.workers = {Prefill(kP1, {kD1}), Decode(kD1)}};
  const PlacementVerdict verdict = Place(cluster, Request(100, 50));
  EXPECT_EQ(verdict.kind, Kind::kDecodeOnly);
  EXPECT_EQ(verdict.reason, PlacementReason::kLeastDelay);
  EXPECT_EQ(verdict.decode, kD1);
  EXPECT_NEAR(verdict.predicted_ttft_seconds, 0.1, 0.01);
}

TEST(CostPlacementTest, StreamsThatRunAreWorthATransfer) {
  const ClusterSnapshot cluster{
      .workers = {Prefill(kP1, {kD1}), Decode(kD1, 8)}};
  const PlacementVerdict verdict = Place(cluster, Request(100, 50));
  EXPECT_EQ(verdict.kind, Kind::kPrefillAndDecode);
  EXPECT_EQ(verdict.prefill, kP1);
  EXPECT_EQ(verdict.decode, kD1);
}

TEST(CostPlacementTest, AQueueBeforePrefillSendsPromptsElsewhere) {
  ClusterSnapshot cluster{
      .workers = {Prefill(kP1, {kD1}), Prefill(kP2, {kD1}), Decode(kD1, 8)}};
  cluster.workers[0].queued_tokens = 4000;
  EXPECT_EQ(Place(cluster, Request(100, 50)).prefill, kP2);
  // Before both: sooner here, though streams suffer.
  cluster.workers[1].queued_tokens = 4000;
  EXPECT_EQ(Place(cluster, Request(100, 50)).kind, Kind::kDecodeOnly);
  // What this router placed counts like what was reported.
  cluster.workers[0].placed_tokens = -4000;
  EXPECT_EQ(Place(cluster, Request(100, 50)).prefill, kP1);
}

TEST(CostPlacementTest, ASlowLinkMayCostMoreThanItSaves) {
  ClusterSnapshot cluster{
      .workers = {Prefill(kP1, {kD1}, /*bandwidth=*/1e6), Decode(kD1, 2)}};
  EXPECT_EQ(Place(cluster, Request(200, 50)).kind, Kind::kDecodeOnly);
  cluster.workers[0].link_bandwidth = {1e9};
  EXPECT_EQ(Place(cluster, Request(200, 50)).kind, Kind::kPrefillAndDecode);
}

// Few tokens take long beside streams: 16 of them in a step of 25 ms.
TEST(CostPlacementTest, WhoStandsByWaitsForAQueueBesideStreams) {
  ClusterSnapshot cluster{.workers = {Decode(kD1, 4)}};
  cluster.workers[0].running = 5;
  cluster.workers[0].queued_prompts = 1;
  cluster.workers[0].queued_tokens = 190;
  PlacementRequest request = Request(100, 50);
  request.itl_target_seconds = 0.025;
  EXPECT_EQ(Place(cluster, request).kind, Kind::kDecodeOnly);
  request.stands_by = true;
  const PlacementVerdict verdict = Place(cluster, request);
  EXPECT_EQ(verdict.kind, Kind::kNone);
  EXPECT_EQ(verdict.reason, PlacementReason::kDecodeFull);
  cluster.workers[0].queued_tokens = 0;
  EXPECT_EQ(Place(cluster, request).kind, Kind::kDecodeOnly);
}

// As long as some prefill worker has little to do; those that are full for it
// count, too.
TEST(CostPlacementTest, WhoStandsByLeavesScarceMemoryToPrefillWorkers) {
  ClusterSnapshot cluster{
      .workers = {Prefill(kP1, {kD1}), Prefill(kP2, {kD1}), Decode(kD1, 4)}};
  cluster.workers[0].queued_tokens = 4000;
  cluster.workers[1].queued_tokens = 399;
  PlacementRequest request = Request(800, 50);
  request.stands_by = true;
  EXPECT_EQ(Place(cluster, request).kind, Kind::kDecodeOnly);
  cluster.workers[2].free_blocks = 300;
  EXPECT_EQ(Place(cluster, request).kind, Kind::kNone);
  cluster.workers[1].queued_tokens = 400;
  EXPECT_EQ(Place(cluster, request).kind, Kind::kDecodeOnly);
  // Nobody else could compute it.
  cluster.workers.erase(cluster.workers.begin(), cluster.workers.begin() + 2);
  EXPECT_EQ(Place(cluster, request).kind, Kind::kDecodeOnly);
}

// A chunk reads KV once: what a prompt reads says little of a stream, and the
// other way round.
TEST(CostPlacementTest, WhatPromptsReadIsNotPaidAsStreamsDo) {
  ClusterSnapshot cluster{.workers = {Decode(kD1)}};
  StepCost& cost = cluster.workers[0].step_cost;
  const double before =
      Place(cluster, Request(4000, 50)).predicted_ttft_seconds;
  cost.per_context_token *= 10;
  EXPECT_EQ(Place(cluster, Request(4000, 50)).predicted_ttft_seconds, before);
  cost.per_prompt_context_token *= 2;
  // 8 million pairs, 0.1 microseconds more for each.
  EXPECT_NEAR(Place(cluster, Request(4000, 50)).predicted_ttft_seconds,
              before + 0.8, 0.01);
}

// Sooner is better, but not at the price of a target.
TEST(CostPlacementTest, TargetsComeBeforeDelay) {
  ClusterSnapshot cluster{
      .workers = {Prefill(kP1, {kD1}), Decode(kD1, 8), Decode(kD2, 30)}};
  cluster.workers[0].queued_tokens = 3000;
  PlacementRequest request = Request(100, 50);
  ASSERT_EQ(Place(cluster, request).decode, kD1);
  // 30 streams cannot keep to 20 ms; 8 can.
  request.itl_target_seconds = 0.020;
  EXPECT_EQ(Place(cluster, request).decode, kD1);
  const DelayEstimate idle = EstimateLocal(cluster.workers[1], request);
  const DelayEstimate busy = EstimateLocal(cluster.workers[2], request);
  EXPECT_EQ(idle.miss, 0);
  EXPECT_GT(busy.miss, 0);
  // A target for the first token that only the prompt's own worker can meet.
  request.ttft_target_seconds = 0.5;
  EXPECT_EQ(Place(cluster, request).kind, Kind::kDecodeOnly);
}

TEST(CostPlacementTest, RoomIsRequired) {
  ClusterSnapshot cluster{
      .workers = {Prefill(kP1, {kD1, kD2}), Decode(kD1), Decode(kD2, 20)}};
  cluster.workers[1].free_blocks = 3;
  EXPECT_EQ(Place(cluster, Request(100, 50)).decode, kD2);
  cluster.workers[2].usable = false;
  const PlacementVerdict none = Place(cluster, Request(100, 50));
  EXPECT_EQ(none.kind, Kind::kNone);
  EXPECT_EQ(none.reason, PlacementReason::kDecodeFull);
}

// A step of 20 streams and the request takes 26.2 ms; with 16 tokens of a
// prompt 15 more.
TEST(CostPlacementTest, AFullBatchPaysForNoPromptThatPrefillWorkersAreFor) {
  ClusterSnapshot cluster{
      .workers = {Prefill(kP1, {kD1}), Decode(kD1, 20), Decode(kD2, 20)}};
  cluster.workers[0].queued_tokens = 4000;
  cluster.workers[0].paired_with = {kD1};
  PlacementRequest request = Request(100, 50);
  const auto within = [&](double step_seconds) {
    request.batch_itl_seconds = step_seconds / StepBudgetSeconds(1);
    return Place(cluster, request);
  };
  EXPECT_EQ(within(0.045).kind, Kind::kDecodeOnly);
  EXPECT_EQ(within(0.030).kind, Kind::kPrefillAndDecode);
  // Not now; but they are there.
  cluster.workers[0].max_queued_tokens = 4000;
  EXPECT_EQ(within(0.045).kind, Kind::kDecodeOnly);
  EXPECT_EQ(within(0.030).reason, PlacementReason::kPrefillFull);
  // They refused it, or could never hold it: it is computed somewhere.
  const WorkerId refused[] = {kP1};
  request.excluded = refused;
  EXPECT_EQ(within(0.030).kind, Kind::kDecodeOnly);
  request.excluded = {};
  cluster.workers[0].max_context = 99;
  EXPECT_EQ(within(0.030).kind, Kind::kDecodeOnly);
  cluster.workers.erase(cluster.workers.begin());
  EXPECT_EQ(within(0.030).kind, Kind::kDecodeOnly);
}

TEST(CostPlacementTest, LoadDecidesWhileCostsAreUnknown) {
  ClusterSnapshot cluster{.workers = {Prefill(kP1, {kD1}), Decode(kD1)}};
  for (WorkerSnapshot& worker : cluster.workers) worker.step_cost = {};
  EXPECT_EQ(Place(cluster, Request(100, 50)).reason,
            PlacementReason::kLeastLoad);
  // One that knows speaks for the others.
  cluster.workers[0].step_cost = kCost;
  EXPECT_EQ(Place(cluster, Request(100, 50)).reason,
            PlacementReason::kLeastDelay);
}

TEST(CostPlacementTest, LocalPrefillWaitsForThePairing) {
  ClusterSnapshot cluster{.workers = {Prefill(kP1, {}), Decode(kD1)},
                          .allow_local_prefill = false};
  EXPECT_EQ(Place(cluster, Request(100, 50)).reason,
            PlacementReason::kPairingPending);
}

TEST(CostPlacementTest, EqualPlacementsTakeTurns) {
  ClusterSnapshot cluster{.workers = {Decode(kD1), Decode(kD2)}};
  std::vector<WorkerId> taken;
  for (cluster.round = 0; cluster.round < 4; ++cluster.round) {
    taken.push_back(Place(cluster, Request(100, 50)).decode);
  }
  EXPECT_EQ(std::count(taken.begin(), taken.end(), kD1), 2);
}

TEST(CostPlacementTest, ExplainsWhoWasPassedOver) {
  const ClusterSnapshot cluster{
      .workers = {Prefill(kP1, {kD1, kD2}), Decode(kD1), Decode(kD2, 4)}};
  const PlacementRequest request = Request(100, 50);
  const PlacementVerdict verdict = Place(cluster, request);
  for (const PlacementCandidate& candidate :
       CostModelPlacement().Weigh(cluster, request, verdict, 10)) {
    const bool chosen = candidate.id == verdict.decode;
    EXPECT_EQ(candidate.standing,
              chosen ? PlacementCandidate::Standing::kChosen
                     : PlacementCandidate::Standing::kPassedOver)
        << static_cast<uint64_t>(candidate.id);
  }
}

// Against all that is possible, one by one.
TEST(CostPlacementTest, TakesTheBestOfAll) {
  std::mt19937 random(3);
  const auto draw = [&](int most) {
    return static_cast<int>(random() % static_cast<unsigned>(most));
  };
  for (int round = 0; round < 300; ++round) {
    ClusterSnapshot cluster;
    std::vector<WorkerId> decoders;
    for (int d = 0; d < 1 + draw(4); ++d) {
      decoders.push_back(WorkerId{static_cast<uint64_t>(100 + d)});
      cluster.workers.push_back(Decode(decoders.back(), draw(40)));
      cluster.workers.back().queued_tokens = draw(3) == 0 ? draw(500) : 0;
    }
    for (int p = 0; p < draw(4); ++p) {
      cluster.workers.push_back(Prefill(WorkerId{static_cast<uint64_t>(1 + p)},
                                        decoders, 1e7 * (1 + draw(100))));
      cluster.workers.back().queued_tokens = draw(2000);
    }
    PlacementRequest request = Request(1 + draw(2000), 1 + draw(300));
    if (draw(2) == 0) request.ttft_target_seconds = 0.1 * (1 + draw(20));
    if (draw(2) == 0) request.itl_target_seconds = 0.005 * (1 + draw(10));
    std::pair<double, double> best = {1e9, 1e9};
    std::pair<double, double> chosen = best;
    const PlacementVerdict verdict = Place(cluster, request);
    const auto offer = [&](WorkerId prefill, WorkerId decode,
                           const DelayEstimate& estimate) {
      const std::pair rank(estimate.miss, estimate.delay_seconds);
      best = std::min(best, rank);
      if (verdict.prefill != prefill || verdict.decode != decode) return;
      chosen = rank;
      EXPECT_EQ(verdict.predicted_ttft_seconds, estimate.ttft_seconds) << round;
      EXPECT_EQ(verdict.predicted_tpot_seconds, estimate.tpot_seconds) << round;
    };
    for (const WorkerSnapshot& d : cluster.workers) {
      if (d.role != WorkerRole::kDecode || !DecodeHasRoom(d, request)) continue;
      offer(kNoWorker, d.id, EstimateLocal(d, request));
      for (const WorkerSnapshot& p : cluster.workers) {
        if (p.role != WorkerRole::kPrefill) continue;
        offer(p.id, d.id, EstimatePair(p, d, Bandwidth(p, d.id), request));
      }
    }
    EXPECT_EQ(chosen, best) << round;
  }
}

}  // namespace
}  // namespace baton::scheduling::cost_placement_test
