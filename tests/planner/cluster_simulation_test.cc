#include "planner/cluster_simulation.h"

#include <cmath>
#include <random>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "workload/workload.h"

namespace baton::planner {
namespace {

using workload::PlannedRequest;

// A millisecond for a step, and one for each prompt token; nothing else costs.
WorkerProfile Plain() {
  WorkerProfile worker;
  worker.cost.fixed = 0.001;
  worker.cost.per_token = 0.001;
  worker.block_size = 16;
  worker.total_blocks = 1000;
  worker.max_sequences = 64;
  worker.max_context = 8192;
  worker.token_budget = 128;
  return worker;
}

SimulationOptions PlainCluster(int32_t num_prefill, int32_t num_decode) {
  SimulationOptions options;
  options.profile.prefill = options.profile.decode = Plain();
  options.profile.kv_bytes_per_token = 1000;
  options.profile.num_layers = 10;
  options.num_prefill = num_prefill;
  options.num_decode = num_decode;
  return options;
}

PlannedRequest At(double seconds, int32_t prompt, int32_t output) {
  PlannedRequest request;
  request.at = absl::Seconds(seconds);
  request.prompt_tokens = prompt;
  request.output_tokens = output;
  return request;
}

std::vector<PlannedRequest> Poisson(double rate, double seconds,
                                    workload::LengthRange prompt,
                                    workload::LengthRange output,
                                    uint64_t seed = 1) {
  workload::SyntheticOptions options;
  options.arrivals.rate = rate;
  options.arrivals.seed = seed;
  options.prompt = prompt;
  options.output = output;
  options.duration = absl::Seconds(seconds);
  options.seed = seed;
  return workload::MakeSynthetic(options);
}

TEST(ClusterSimulationTest, OneRequestTakesWhatItsStepsTake) {
  // 100 tokens in one step, and then four steps of one token each.
  const SimulationResult result =
      Simulate(PlainCluster(0, 1), {At(1, 100, 5)}, absl::Seconds(2));
  EXPECT_EQ(result.finished, 1);
  EXPECT_EQ(result.local_prefills, 1);
  EXPECT_NEAR(result.ttft.max, 101, 1e-6);
  EXPECT_NEAR(result.tpot.max, 2, 1e-6);
  EXPECT_NEAR(result.longest_gap.max, 2, 1e-5);
  EXPECT_NEAR(result.e2e.max, 109, 1e-6);
  EXPECT_EQ(result.attainment, 1);
  EXPECT_EQ(result.goodput, 0.5);
  EXPECT_EQ(result.decode.steps, 5);
}

TEST(ClusterSimulationTest, APromptIsCutIntoChunks) {
  // 128 + 128 + 44 tokens.
  const SimulationResult result =
      Simulate(PlainCluster(0, 1), {At(0, 300, 1)}, absl::Seconds(1));
  EXPECT_NEAR(result.ttft.max, 303, 1e-6);
  EXPECT_EQ(result.decode.steps, 3);
}

TEST(ClusterSimulationTest, TheTransferIsHiddenButForTheLastLayer) {
  SimulationOptions options = PlainCluster(1, 1);
  options.allow_local_prefill = false;
  // 100 kB in 50 ms, while 101 ms of computing: 5 ms for the last of ten
  // layers.
  options.profile.link_bytes_per_second = 2e6;
  const SimulationResult hidden =
      Simulate(options, {At(0, 100, 3)}, absl::Seconds(1));
  EXPECT_EQ(hidden.local_prefills, 0);
  EXPECT_NEAR(hidden.ttft.max, 101, 1e-6);
  EXPECT_NEAR(hidden.longest_gap.max, 5 + 2, 1e-4);
  EXPECT_NEAR(hidden.e2e.max, 101 + 5 + 2 + 2, 1e-6);
  // In 200 ms: 99 of them are seen.
  options.profile.link_bytes_per_second = 0.5e6;
  options.profile.link_latency_seconds = 0.01;
  const SimulationResult seen =
      Simulate(options, {At(0, 100, 3)}, absl::Seconds(1));
  EXPECT_NEAR(seen.longest_gap.max, 99 + 10 + 2, 1e-4);
}

TEST(ClusterSimulationTest, APromptThatIsSplitIsComputedInBothPlaces) {
  SimulationOptions options = PlainCluster(1, 1);
  options.allow_local_prefill = false;
  options.prefix_cache_tokens = 0;
  options.split_share = 0.25;
  // 300 tokens in three steps, 0.3 MB in 300 ms of which a tenth is seen, and
  // 100 tokens in one step.
  options.profile.link_bytes_per_second = 1e6;
  const SimulationResult split =
      Simulate(options, {At(0, 400, 3)}, absl::Seconds(1));
  EXPECT_NEAR(split.ttft.max, 303 + 30 + 101, 1e-6);
  EXPECT_NEAR(split.e2e.max, 303 + 30 + 101 + 2 + 2, 1e-6);
  EXPECT_EQ(split.prefill.prompt_tokens, 300);
  EXPECT_EQ(split.decode.prompt_tokens, 100);
  // Also with an answer of one token.
  const SimulationResult one =
      Simulate(options, {At(0, 400, 1)}, absl::Seconds(1));
  EXPECT_NEAR(one.e2e.max, 303 + 30 + 101, 1e-6);
  // Short ones are not.
  EXPECT_EQ(
      Simulate(options, {At(0, 255, 3)}, absl::Seconds(1)).decode.prompt_tokens,
      0);
}

TEST(ClusterSimulationTest, TransfersShareTheNetworkOfTheirWorkers) {
  SimulationOptions options = PlainCluster(1, 2);
  options.allow_local_prefill = false;
  options.profile.prefill.token_budget = 256;
  options.profile.link_bytes_per_second = 0.5e6;  // 200 ms each
  const SimulationResult result =
      Simulate(options, {At(0, 100, 2), At(0, 100, 2)}, absl::Seconds(1));
  // The second prompt begins behind the first one at the worker, and its KV
  // behind that of the first one.
  EXPECT_NEAR(result.e2e.max, 400 + 2, 3);
}

TEST(ClusterSimulationTest, AQueueIsThatOfTheTextbook) {
  // One server, constant service of 11 ms (10 tokens and a step), 80% used:
  // Poisson arrivals wait rho / (2 (1 - rho)) times the service on average
  // (Pollaczek and Khinchine). One at a time, as the budget has room for one.
  SimulationOptions options = PlainCluster(0, 1);
  options.profile.decode.token_budget = 10;
  options.profile.decode.max_sequences = 5;
  options.placement = "least-load";
  const double service = 0.011;
  const double load = 0.8;
  const auto requests = Poisson(load / service, 4000, {10, 10}, {1, 1});
  const SimulationResult result =
      Simulate(options, requests, absl::Seconds(4000));
  EXPECT_EQ(result.finished, result.offered);
  const double wait = load / (2 * (1 - load)) * service;
  EXPECT_NEAR(result.ttft.mean, 1e3 * (service + wait), 0.05 * 1e3 * wait);
  EXPECT_NEAR(result.decode.busy, load, 0.01);
}

TEST(ClusterSimulationTest, LittlesLawHoldsForTheBatch) {
  SimulationOptions options = PlainCluster(1, 1);
  options.allow_local_prefill = false;
  options.profile.prefill.cost.per_token = 1e-5;
  options.profile.decode.cost = {.fixed = 0.01};
  const auto requests = Poisson(10, 1000, {10, 10}, {101, 101});
  const SimulationResult result =
      Simulate(options, requests, absl::Seconds(1000));
  // Ten a second, a hundred steps of 10 ms each.
  EXPECT_NEAR(result.decode.batch * result.decode.busy, 10, 0.3);
  EXPECT_NEAR(result.tpot.p50, 10, 0.2);
}

TEST(ClusterSimulationTest, EveryRequestHasOneEnd) {
  std::mt19937_64 random(5);
  for (uint64_t seed = 1; seed <= 30; ++seed) {
    SCOPED_TRACE(seed);
    SimulationOptions options =
        PlainCluster(static_cast<int32_t>(random() % 4),
                     1 + static_cast<int32_t>(random() % 4));
    options.allow_local_prefill = options.num_prefill == 0 || random() % 2 == 0;
    options.placement = random() % 2 == 0 ? "least-load" : "cost-model";
    options.profile.link_bytes_per_second = random() % 2 == 0 ? 0 : 1e6;
    options.profile.decode.total_blocks =
        40 + static_cast<int32_t>(random() % 100);
    options.profile.prefill.total_blocks = 40;
    options.profile.prefill.max_sequences = 4;
    options.profile.prefill.max_queued_tokens = 2000;
    options.timeout_seconds = 20;
    if (random() % 2 == 0) options.targets.ttft = absl::Milliseconds(500);
    if (random() % 2 == 0) options.targets.itl = absl::Milliseconds(20);
    const auto requests = Poisson(5 + static_cast<double>(random() % 40), 20,
                                  {1, 700}, {1, 60}, seed);
    const SimulationResult result =
        Simulate(options, requests, absl::Seconds(20));
    EXPECT_EQ(result.offered, static_cast<int64_t>(requests.size()));
    EXPECT_EQ(result.finished + result.rejected + result.unfinished,
              result.offered);
    EXPECT_LE(result.met, result.finished);
    EXPECT_DOUBLE_EQ(
        result.attainment,
        static_cast<double>(result.met) / static_cast<double>(result.offered));
    EXPECT_LE(result.prefill.busy, 1 + 1e-9);
    EXPECT_LE(result.decode.busy, 1 + 1e-9);
    EXPECT_LE(result.decode.kv_blocks, 1);
  }
}

TEST(ClusterSimulationTest, FastForwardChangesNothing) {
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    SCOPED_TRACE(seed);
    SimulationOptions options = PlainCluster(2, 3);
    options.profile.decode.cost.per_context_token = 1e-6;
    options.profile.decode.cost.per_prompt_context_token = 1e-7;
    options.profile.link_bytes_per_second = 1e7;
    const auto requests = Poisson(8, 60, {1, 600}, {1, 200}, seed);
    const SimulationResult fast =
        Simulate(options, requests, absl::Seconds(60));
    options.fast_forward = false;
    const SimulationResult slow =
        Simulate(options, requests, absl::Seconds(60));
    EXPECT_EQ(fast.finished, slow.finished);
    EXPECT_EQ(fast.local_prefills, slow.local_prefills);
    EXPECT_EQ(fast.decode.steps, slow.decode.steps);
    EXPECT_NEAR(fast.ttft.mean, slow.ttft.mean, 1e-6 * slow.ttft.mean);
    EXPECT_NEAR(fast.tpot.p99, slow.tpot.p99, 1e-6 * slow.tpot.p99);
    EXPECT_NEAR(fast.longest_gap.max, slow.longest_gap.max, 1e-3);
    EXPECT_NEAR(fast.itl.mean, slow.itl.mean, 1e-6 * slow.itl.mean);
  }
}

TEST(ClusterSimulationTest, TheSameSeedGivesTheSameResult) {
  const SimulationOptions options = PlainCluster(1, 2);
  const auto run = [&](uint64_t seed) {
    return SimulationJson(Simulate(options,
                                   Poisson(8, 30, {1, 300}, {1, 50}, seed),
                                   absl::Seconds(30)))
        .dump();
  };
  EXPECT_EQ(run(1), run(1));
  EXPECT_NE(run(1), run(2));
}

TEST(ClusterSimulationTest, WhatCannotBeHeldIsRejected) {
  SimulationOptions options = PlainCluster(0, 1);
  options.profile.decode.max_context = 100;
  const SimulationResult result =
      Simulate(options, {At(0, 90, 20), At(0.1, 50, 20)}, absl::Seconds(1));
  EXPECT_EQ(result.rejected, 1);
  EXPECT_EQ(result.finished, 1);
  EXPECT_EQ(result.attainment, 0.5);
}

TEST(ClusterSimulationTest, OverloadCountsAgainstTheCluster) {
  SimulationOptions options = PlainCluster(1, 1);
  options.targets.ttft = absl::Milliseconds(300);
  options.timeout_seconds = 30;
  // About nine times as much as it can take.
  const auto requests = Poisson(100, 30, {100, 100}, {1, 1});
  const SimulationResult result =
      Simulate(options, requests, absl::Seconds(30));
  EXPECT_GT(result.rejected + result.unfinished, 0);
  EXPECT_LT(result.attainment, 0.3);
  // Those that are too late do not keep the others from being in time.
  EXPECT_GT(result.attainment, 0.05);
  options.most_misses = 50;
  const SimulationResult early = Simulate(options, requests, absl::Seconds(30));
  EXPECT_TRUE(early.stopped_early);
  EXPECT_LE(early.attainment, result.attainment);
}

// Requests that are late wait where they hold nothing: neither prefill workers
// nor places on decode workers are taken from those that come next.
TEST(ClusterSimulationTest, UnderOverloadItGivesAlmostWhatItCan) {
  SimulationOptions options = PlainCluster(2, 2);
  options.targets = {absl::Seconds(2), absl::Milliseconds(50)};
  options.timeout_seconds = 60;
  const auto goodput = [&](double rate) {
    return Simulate(options, Poisson(rate, 120, {100, 300}, {10, 50}),
                    absl::Seconds(120))
        .goodput;
  };
  // 200 tokens on average: ten prompts a second on two workers.
  const double most = goodput(9);
  EXPECT_GT(most, 8);
  EXPECT_GT(goodput(13), 0.9 * most);
  EXPECT_GT(goodput(18), 0.9 * most);
}

// One pool: who would be late on a decode worker waits where nothing is lost by
// it. (All were placed before, and half of the work was for late ones.)
TEST(ClusterSimulationTest, UnderOverloadOnePoolGivesAlmostWhatItCan) {
  WorkerProfile worker;
  worker.cost = {.fixed = 0.02,
                 .per_token = 1.2e-4,
                 .per_context_token = 8e-8,
                 .per_sequence = 4e-5,
                 .per_prompt_context_token = 4e-9};
  worker.total_blocks = 12'000;
  worker.max_sequences = 200;
  SimulationOptions options;
  options.profile.prefill = options.profile.decode = worker;
  options.num_prefill = 0;
  options.num_decode = 4;
  options.targets = {absl::Seconds(1), absl::Milliseconds(50)};
  options.timeout_seconds = 60;
  const auto run = [&](double rate) {
    return Simulate(options, Poisson(rate, 120, {50, 450}, {50, 350}),
                    absl::Seconds(120));
  };
  double most = 0;
  for (const double rate : {17.0, 19.0, 21.0, 23.0}) {
    most = std::max(most, run(rate).goodput);
  }
  const SimulationResult overload = run(34);
  EXPECT_GT(overload.goodput, 0.9 * most);
  // What they missed it by.
  EXPECT_GT(overload.missed_ttft, 0);
  EXPECT_LE(overload.missed_ttft + overload.missed_tpot + overload.met,
            overload.offered + overload.missed_tpot);
  EXPECT_EQ(overload.missed_ttft + overload.rejected + overload.unfinished +
                overload.met,
            overload.offered);
}

// A prefill and a decode worker of a CPU each: a prompt beside streams costs
// them as much there as elsewhere, and beyond what the cluster carries, decode
// workers compute none of those that are late anyway. (They did: 0.9.)
TEST(ClusterSimulationTest, UnderOverloadDecodeWorkersComputeNoLatePrompts) {
  WorkerProfile worker;
  worker.cost = {.fixed = 0.011,
                 .per_token = 0.00125,
                 .per_context_token = 2.5e-7,
                 .per_sequence = 0.0001,
                 .per_prompt_context_token = 2.5e-7};
  worker.total_blocks = 1400;
  worker.token_budget = 512;
  SimulationOptions options;
  options.profile.prefill = options.profile.decode = worker;
  options.profile.kv_bytes_per_token = 46080;
  options.profile.num_layers = 30;
  options.profile.link_bytes_per_second = 2e9;
  options.targets = {absl::Seconds(2), absl::Milliseconds(50)};
  options.timeout_seconds = 120;
  for (const double rate : {5.0, 6.2, 7.5, 9.0}) {
    const auto requests = Poisson(rate, 600, {32, 160}, {32, 128});
    const auto goodput = [&](bool local) {
      options.allow_local_prefill = local;
      return Simulate(options, requests, absl::Seconds(600)).goodput;
    };
    EXPECT_GT(goodput(true), 0.98 * goodput(false)) << rate;
  }
}

// Long prompts and few decode workers, of which the memory is what limits the
// cluster: whoever is late does not take it from those that prefill workers
// could compute in time. (They did: 0.88.)
TEST(ClusterSimulationTest, LatePromptsTakeNoMemoryThatPrefillWorkersNeed) {
  WorkerProfile worker;
  worker.cost = {.fixed = 0.018,
                 .per_token = 2.4e-4,
                 .per_context_token = 8.5e-8,
                 .per_sequence = 2e-6,
                 .per_prompt_context_token = 4.4e-9};
  worker.total_blocks = 10'500;
  worker.max_context = 131'072;
  worker.token_budget = 2048;
  SimulationOptions options;
  options.profile.prefill = options.profile.decode = worker;
  options.profile.kv_bytes_per_token = 327'680;
  options.profile.num_layers = 80;
  options.profile.link_bytes_per_second = 4e10;
  options.num_prefill = 14;
  options.num_decode = 2;
  options.targets = {absl::Seconds(7.5), absl::Milliseconds(60)};
  options.timeout_seconds = 120;
  for (const double rate : {2.5, 2.8, 3.1, 3.4}) {
    const auto requests = Poisson(rate, 400, {8000, 24'000}, {10, 100});
    const auto goodput = [&](bool local) {
      options.allow_local_prefill = local;
      return Simulate(options, requests, absl::Seconds(400)).goodput;
    };
    EXPECT_GT(goodput(true), 0.98 * goodput(false)) << rate;
  }
}

TEST(ClusterSimulationTest, NamesWhatIsWrongWithItsOptions) {
  const auto message = [](const SimulationOptions& options) {
    return std::string(Validate(options).message());
  };
  EXPECT_EQ(message(PlainCluster(1, 1)), "");
  EXPECT_THAT(message(PlainCluster(1, 0)), testing::HasSubstr("0 decode"));
  SimulationOptions options = PlainCluster(0, 1);
  options.allow_local_prefill = false;
  EXPECT_THAT(message(options), testing::HasSubstr("without prefill workers"));
  options = PlainCluster(1, 1);
  options.placement = "by-hand";
  EXPECT_THAT(message(options), testing::HasSubstr("by-hand"));
  options = PlainCluster(1, 1);
  options.split_share = 1;
  EXPECT_THAT(message(options), testing::HasSubstr("split_share"));
  options.split_share = 0.5;
  EXPECT_THAT(message(options), testing::HasSubstr("prefix caches"));
  options = PlainCluster(1, 1);
  options.profile.decode.max_sequences = 1000;
  EXPECT_THAT(message(options), testing::HasSubstr("max_sequences"));
}

}  // namespace
}  // namespace baton::planner
