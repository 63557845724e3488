// What is predicted, against sums done by hand.
#include "scheduling/placement_cost.h"

#include <vector>

#include <gtest/gtest.h>

#include "tests/scheduling/placement_cluster.h"

namespace baton::scheduling::placement_cost_test {
namespace {

using test::DecodeWorker;
using test::PrefillWorker;
using test::RequestOf;

constexpr WorkerId kP{1}, kD{11};
constexpr double kTiny = 1e-9;
// Of the workers' links: 64 KiB a token at 1 GB/s.
constexpr double kMove = 65536e-9;

TEST(PlacementCostTest, AnIdlePrefillWorkerTakesItsSteps) {
  // Two steps; a thousand tokens that read 500,500 positions; one sample.
  const DelayEstimate estimate = EstimatePair(
      PrefillWorker(kP, {kD}), DecodeWorker(kD), 1e9, RequestOf(1000, 101));
  EXPECT_NEAR(estimate.ttft_seconds, 2 * 0.002 + 1.0 + 0.05005 + 0.0001, kTiny);
  // The last layer of the last chunk, which has 488 tokens.
  EXPECT_NEAR(estimate.gap_seconds, kMove * 488 / 16, kTiny);
  // A decode step of one sequence that reads 1000 positions, 100 times.
  EXPECT_NEAR(estimate.itl_seconds, 0.002 + 0.001 + 0.0001 + 0.0001, kTiny);
  EXPECT_NEAR(
      estimate.delay_seconds,
      estimate.ttft_seconds + estimate.gap_seconds + 100 * estimate.itl_seconds,
      kTiny);
  EXPECT_NEAR(estimate.tpot_seconds,
              estimate.gap_seconds / 100 + estimate.itl_seconds, kTiny);
}

TEST(PlacementCostTest, WhatIsCachedIsNotComputed) {
  PlacementRequest request = RequestOf(1000, 101);
  const std::vector<CachedPrompt> cached = {{kP, 600}};
  request.cached = cached;
  const DelayEstimate estimate =
      EstimatePair(PrefillWorker(kP, {kD}), DecodeWorker(kD), 1e9, request);
  // 400 tokens in one step, each after the 600: they read 320,200 positions.
  EXPECT_NEAR(estimate.ttft_seconds, 0.002 + 0.4 + 0.03202 + 0.0001, kTiny);
  // The cached part travels meanwhile.
  EXPECT_NEAR(estimate.gap_seconds, kMove * 400 / 16, kTiny);
}

TEST(PlacementCostTest, WhatTheDecodeWorkerHasDoesNotTravel) {
  PlacementRequest request = RequestOf(1000, 101);
  const std::vector<CachedPrompt> cached = {{kP, 500}, {kD, 900}};
  request.cached = cached;
  // 10 MB/s: what travels is not hidden. Only 100 tokens do, from when they are
  // computed on.
  const DelayEstimate estimate =
      EstimatePair(PrefillWorker(kP, {kD}), DecodeWorker(kD), 1e7, request);
  const double compute = estimate.ttft_seconds;
  EXPECT_NEAR(compute, 0.002 + 0.5 + (500 * 500 + 125250) * 1e-7 + 0.0001,
              kTiny);
  EXPECT_NEAR(estimate.gap_seconds, 100 * kMove * 100 - compute, kTiny);
}

TEST(PlacementCostTest, ACachedPrefixTravelsBeforeItsTurn) {
  // Behind a queue of a second: 900 cached tokens are there by then.
  WorkerSnapshot prefill = PrefillWorker(kP, {kD});
  PlacementRequest request = RequestOf(1000, 101);
  const std::vector<CachedPrompt> cached = {{kP, 900}};
  request.cached = cached;
  const double at_once =
      EstimatePair(prefill, DecodeWorker(kD), 1e8, request).gap_seconds;
  prefill.queued_tokens = 1000;
  prefill.waiting = 1;
  const double queued =
      EstimatePair(prefill, DecodeWorker(kD), 1e8, request).gap_seconds;
  const double compute = 0.002 + 0.1 + (100 * 900 + 5050) * 1e-7 + 0.0001;
  EXPECT_NEAR(at_once, 10 * kMove * 1000 - compute, kTiny);
  EXPECT_NEAR(queued, 10 * kMove * 100 / 16, kTiny);
}

TEST(PlacementCostTest, AQueueIsSeveralPromptsInSharedSteps) {
  WorkerSnapshot prefill = PrefillWorker(kP, {kD});
  prefill.queued_tokens = 3000;
  prefill.waiting = 6;
  prefill.placed_tokens = 1000;
  prefill.placed_prompts = 2;
  // 4000 tokens of 8 prompts: each reads half of 500 and a half. The last of
  // the eight steps takes the 96 tokens as well.
  const double queue = 4.0 + 4000 * 250.5 * 1e-7 + 8 * 0.0001;
  const double own = 0.096 + 96 * 48.5 * 1e-7 + 0.0001;
  const auto ttft = [&](double age) {
    return EstimatePair(prefill, DecodeWorker(kD), 1e9, RequestOf(96, 1), age)
        .ttft_seconds;
  };
  EXPECT_NEAR(ttft(0), 8 * 0.002 + queue + own, kTiny);
  // The worker went on since it reported, but not with what was placed since.
  EXPECT_NEAR(ttft(0.25), ttft(0) - 0.25, kTiny);
  EXPECT_NEAR(ttft(1000), ttft(0) - (7 * 0.002 + queue) * 3 / 4, kTiny);
}

TEST(PlacementCostTest, APromptBesideStreams) {
  // 500 tokens in three steps of at most 248, each with 8 streams. A step is
  // under way.
  const DelayEstimate estimate =
      EstimateLocal(DecodeWorker(kD, 8), RequestOf(500, 50));
  const double step = 0.002 + 8 * 0.001 + 4000 * 1e-7 + 8 * 0.0001;
  const double work = 0.5 + 125250 * 1e-7 + 0.0001;
  EXPECT_NEAR(estimate.ttft_seconds, step / 2 + 3 * step + work, kTiny);
  const double with = 0.002 + 9 * 0.001 + 4500 * 1e-7 + 9 * 0.0001;
  EXPECT_NEAR(estimate.itl_seconds, with, kTiny);
  EXPECT_NEAR(
      estimate.delay_seconds,
      estimate.ttft_seconds + 8 * work + 49 * (with + 8 * (with - step)),
      kTiny);
}

TEST(PlacementCostTest, ChunksAreShortWhereStreamsMayNotWait) {
  WorkerSnapshot decode = DecodeWorker(kD, 8);
  decode.itl_target_seconds = 0.1;
  // A prompt token takes a millisecond and what the 250 positions cost that it
  // reads on average: 76 fit into 90 ms beside the streams. Seven steps.
  const double step = 0.002 + 8 * 0.001 + 4000 * 1e-7 + 8 * 0.0001;
  ASSERT_EQ(static_cast<int>((0.09 - step - 0.0001) / (0.001 + 250e-7)), 76);
  const double work = 0.5 + 125250 * 1e-7 + 0.0001;
  EXPECT_NEAR(EstimateLocal(decode, RequestOf(500, 50)).ttft_seconds,
              step / 2 + 7 * step + work, kTiny);
  // However short the time, 16 at least.
  decode.itl_target_seconds = 0.001;
  EXPECT_NEAR(EstimateLocal(decode, RequestOf(500, 50)).ttft_seconds,
              step / 2 + 32 * step + work, kTiny);
  // The streams are taken to be like the request; the tighter target counts.
  PlacementRequest request = RequestOf(500, 50);
  request.itl_target_seconds = 0.1;
  decode.itl_target_seconds = 0;
  EXPECT_NEAR(EstimateLocal(decode, request).ttft_seconds,
              step / 2 + 7 * step + work, kTiny);
  decode.itl_target_seconds = 0.001;
  EXPECT_NEAR(EstimateLocal(decode, request).ttft_seconds,
              step / 2 + 32 * step + work, kTiny);
  decode.itl_target_seconds = 10;
  EXPECT_NEAR(EstimateLocal(decode, request).ttft_seconds,
              step / 2 + 7 * step + work, kTiny);
  // Nobody waits.
  EXPECT_NEAR(EstimateLocal(DecodeWorker(kD), RequestOf(500, 50)).ttft_seconds,
              2 * 0.002 + work, kTiny);
}

TEST(PlacementCostTest, ALocalQueueComesFirst) {
  WorkerSnapshot decode = DecodeWorker(kD, 6);
  decode.queued_tokens = 450;
  // 950 tokens in four steps of 250. The step under way is part of the queue.
  const DelayEstimate estimate = EstimateLocal(decode, RequestOf(500, 50));
  const double step = 0.002 + 6 * 0.001 + 3000 * 1e-7 + 6 * 0.0001;
  EXPECT_NEAR(estimate.ttft_seconds,
              4 * step + 0.45 + 450 * 225.5 * 1e-7 + 0.0001 + 0.5 +
                  125250 * 1e-7 + 0.0001,
              kTiny);
  // What was there before is done by then; what comes later is not known.
  EXPECT_EQ(estimate.tpot_seconds, estimate.itl_seconds);
}

TEST(PlacementCostTest, PromptsThatAreQueuedAreNoStreamsYet) {
  // Eight run, of which three have their prompts to be computed: five streams.
  WorkerSnapshot decode = DecodeWorker(kD, 8);
  decode.itl_target_seconds = 0.1;
  decode.queued_tokens = 300;
  decode.queued_prompts = 3;
  const double step = 0.002 + 5 * 0.001 + 2500 * 1e-7 + 5 * 0.0001;
  // Chunks of 81 tokens: 800 of them are ten.
  ASSERT_EQ(static_cast<int>((0.09 - step - 0.0001) / (0.001 + 250e-7)), 80);
  const double queued = 0.3 + 300 * 50.5 * 1e-7 + 3 * 0.0001;
  const double own = 0.5 + 125250 * 1e-7 + 0.0001;
  EXPECT_NEAR(EstimateLocal(decode, RequestOf(500, 50)).ttft_seconds,
              4 * step + queued + 6 * step + own, kTiny);
  // None at all: as quick as if it was alone.
  decode.running = 3;
  decode.context_tokens = 0;
  EXPECT_NEAR(EstimateLocal(decode, RequestOf(500, 50)).ttft_seconds,
              4 * 0.002 + queued + own, kTiny);
  // But some are on their way: it will not have long steps.
  decode.waiting = 2;
  EXPECT_GT(EstimateLocal(decode, RequestOf(500, 50)).ttft_seconds,
            10 * 0.002 + queued + own);
}

TEST(PlacementCostTest, WhoHasEndedSinceTheReportTakesHisContextAlong) {
  WorkerSnapshot decode = DecodeWorker(kD, 8);  // 500 tokens each
  decode.queued_tokens = 100;
  decode.queued_prompts = 1;
  const double before = EstimateLocal(decode, RequestOf(100, 2)).ttft_seconds;
  decode.placed_sequences = -3;
  EXPECT_NEAR(EstimateLocal(decode, RequestOf(100, 2)).ttft_seconds, before,
              kTiny);
}

TEST(PlacementCostTest, TheTargetForTokensIsOneForTheirMean) {
  // A slow link, and steps of 3.2 ms: the gap takes 65 ms.
  PlacementRequest request = RequestOf(1000, 11);
  request.itl_target_seconds = 0.005;
  const WorkerSnapshot prefill = PrefillWorker(kP, {kD});
  const double gap =
      EstimatePair(prefill, DecodeWorker(kD), 3e7, request).gap_seconds;
  ASSERT_GT(gap, 0.05);
  const DelayEstimate few =
      EstimatePair(prefill, DecodeWorker(kD), 3e7, request);
  EXPECT_NEAR(few.miss, few.tpot_seconds / 0.005 - 1, kTiny);
  // Over many tokens it is next to nothing.
  request.total_tokens = 1256;
  EXPECT_EQ(EstimatePair(prefill, DecodeWorker(kD), 1e9, request).miss, 0);
}

TEST(PlacementCostTest, SequencesThatAreStillToComeHaveContextToo) {
  WorkerSnapshot decode = DecodeWorker(kD, 2);  // 500 tokens each
  decode.waiting = 2;
  decode.placed_sequences = 1;
  EXPECT_NEAR(EstimateLocal(decode, RequestOf(100, 2)).itl_seconds,
              0.002 + 6 * 0.001 + (5 * 500 + 100) * 1e-7 + 6 * 0.0001, kTiny);
  // Nothing is known of any: like this one.
  decode.running = 0;
  decode.context_tokens = 0;
  EXPECT_NEAR(EstimateLocal(decode, RequestOf(100, 2)).itl_seconds,
              0.002 + 4 * 0.001 + 4 * 100 * 1e-7 + 4 * 0.0001, kTiny);
}

TEST(PlacementCostTest, ADecodeWorkersOwnQueueIsInTheWayOfAHandOff) {
  WorkerSnapshot decode = DecodeWorker(kD);
  decode.queued_tokens = 1000;
  const PlacementRequest request = RequestOf(100, 51);
  const double work = 1.0 + 1000 * 500.5 * 1e-7 + 0.0001;  // in four chunks
  const double queue = 4 * 0.002 + work;
  const DelayEstimate free =
      EstimatePair(PrefillWorker(kP, {kD}), DecodeWorker(kD), 1e9, request);
  const DelayEstimate busy =
      EstimatePair(PrefillWorker(kP, {kD}), decode, 1e9, request);
  const double after = free.ttft_seconds + free.gap_seconds;
  const double beside = (queue - after) / (queue / 4) * (work / 4);
  EXPECT_NEAR(busy.delay_seconds - free.delay_seconds, beside, kTiny);
  EXPECT_NEAR(busy.tpot_seconds - free.tpot_seconds, beside / 50, kTiny);
  // Of an answer of two tokens, one step is longer.
  const double one =
      EstimatePair(PrefillWorker(kP, {kD}), decode, 1e9, RequestOf(100, 2))
          .delay_seconds -
      EstimatePair(PrefillWorker(kP, {kD}), DecodeWorker(kD), 1e9,
                   RequestOf(100, 2))
          .delay_seconds;
  EXPECT_NEAR(one, work / 4, kTiny);
  // Worked off by the time the prompt is computed elsewhere.
  EXPECT_EQ(
      EstimatePair(PrefillWorker(kP, {kD}), decode, 1e9, RequestOf(1200, 51))
          .delay_seconds,
      EstimatePair(PrefillWorker(kP, {kD}), DecodeWorker(kD), 1e9,
                   RequestOf(1200, 51))
          .delay_seconds);
}

TEST(PlacementCostTest, OneTokenIsNotHandedOff) {
  const DelayEstimate estimate = EstimatePair(
      PrefillWorker(kP, {kD}), DecodeWorker(kD, 8), 1e3, RequestOf(100, 1));
  EXPECT_EQ(estimate.gap_seconds, 0);
  EXPECT_EQ(estimate.itl_seconds, 0);
  EXPECT_EQ(estimate.tpot_seconds, 0);
  EXPECT_EQ(estimate.delay_seconds, estimate.ttft_seconds);
}

TEST(PlacementCostTest, AnUnknownBudgetIsNoBound) {
  WorkerSnapshot prefill = PrefillWorker(kP, {kD});
  prefill.token_budget = 0;
  WorkerSnapshot decode = DecodeWorker(kD);
  decode.token_budget = 0;
  const double seconds = 0.002 + 1.0 + 0.05005 + 0.0001;
  EXPECT_NEAR(
      EstimatePair(prefill, decode, 1e9, RequestOf(1000, 9)).ttft_seconds,
      seconds, kTiny);
  EXPECT_NEAR(EstimateLocal(decode, RequestOf(1000, 9)).ttft_seconds, seconds,
              kTiny);
}

TEST(PlacementCostTest, TargetsAreMissedInTheirOwnMeasure) {
  PlacementRequest request = RequestOf(1000, 101);
  request.ttft_target_seconds = 0.5;
  request.itl_target_seconds = 0.1;
  const DelayEstimate estimate = EstimateLocal(DecodeWorker(kD), request);
  EXPECT_NEAR(estimate.miss, estimate.ttft_seconds / 0.5 - 1, kTiny);
  request.itl_target_seconds = 0.001;
  EXPECT_NEAR(
      EstimateLocal(DecodeWorker(kD), request).miss,
      estimate.ttft_seconds / 0.5 - 1 + estimate.itl_seconds / 0.001 - 1,
      kTiny);
}

}  // namespace
}  // namespace baton::scheduling::placement_cost_test
