// Prefix caches in simulated clusters.
#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "planner/cluster_simulation.h"
#include "planner/prefix_chains.h"
#include "planner/router_simulation.h"
#include "workload/planned_request.h"

namespace baton::planner::prefixes_test {
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
  worker.token_budget = 1024;
  return worker;
}

SimulationOptions Cluster(int32_t num_prefill, int32_t num_decode,
                          const std::string& placement = "cost-model") {
  SimulationOptions options;
  options.profile.prefill = options.profile.decode = Plain();
  options.profile.kv_bytes_per_token = 1000;
  options.profile.num_layers = 10;
  options.num_prefill = num_prefill;
  options.num_decode = num_decode;
  options.placement = placement;
  return options;
}

// Blocks of 32 tokens.
PlannedRequest At(double seconds, int32_t prompt, int32_t output,
                  std::vector<uint64_t> prefix) {
  PlannedRequest request;
  request.at = absl::Seconds(seconds);
  request.prompt_tokens = prompt;
  request.output_tokens = output;
  request.prefix = std::move(prefix);
  request.prefix_block = 32;
  return request;
}

SimulationResult Serve(const SimulationOptions& options,
                       const std::vector<PlannedRequest>& requests) {
  return Simulate(options, requests, absl::Seconds(100));
}

TEST(PrefixesTest, WhatIsCachedIsNotComputed) {
  const SimulationResult result = Serve(
      Cluster(0, 1), {At(0, 100, 1, {1, 2, 3}), At(1, 100, 1, {1, 2, 4})});
  EXPECT_EQ(result.finished, 2);
  // Two blocks of the second one.
  EXPECT_EQ(result.cached_tokens, 64);
  EXPECT_EQ(result.decode.prompt_tokens, 136);
  EXPECT_DOUBLE_EQ(PrefixHitRate(result), 64.0 / 200);
  EXPECT_NEAR(result.ttft.max, 101, 1e-6);
  EXPECT_NEAR(result.ttft.mean, (101 + 37) / 2.0, 1e-6);
}

TEST(PrefixesTest, OnlyWholeBlocksAreCached) {
  SimulationOptions options = Cluster(0, 1);
  options.profile.decode.block_size = 48;
  // Of 64 tokens in common.
  EXPECT_EQ(
      Serve(options, {At(0, 100, 1, {1, 2, 3}), At(1, 100, 1, {1, 2, 4})})
          .cached_tokens,
      48);
}

TEST(PrefixesTest, TheRouterCountsWholeBlocksToo) {
  SimulationOptions options = Cluster(0, 2);
  options.profile.decode.block_size = 48;
  const std::vector<PlannedRequest> requests = {At(0, 100, 1, {1, 2, 3}),
                                                At(1, 100, 1, {1, 2, 4})};
  const PrefixChains chains(requests);
  RouterSimulation router({.num_decode = 2, .placement = "cost-model"},
                          options.profile, chains);
  SimulatedReport report;
  for (const uint32_t entry : chains.Of(0)) {
    report.prefixes.stored.push_back({.low = entry});
  }
  router.Reported(1, report, 0.5);
  const auto cached = router.Look(1, 99, 1);
  ASSERT_EQ(cached.size(), 1u);
  EXPECT_EQ(cached[0].worker, RouterSimulation::IdOf(1));
  EXPECT_EQ(cached[0].tokens, 48);
}

TEST(PrefixesTest, TheLastTokenIsAlwaysComputed) {
  const SimulationResult result =
      Serve(Cluster(0, 1), {At(0, 96, 1, {1, 2, 3}), At(1, 96, 1, {1, 2, 3})});
  EXPECT_EQ(result.cached_tokens, 64);
}

TEST(PrefixesTest, WhatIsNotThereYetIsNoHit) {
  // Both come before either is computed.
  const SimulationResult result = Serve(
      Cluster(0, 1), {At(0, 100, 1, {1, 2, 3}), At(0.01, 100, 1, {1, 2, 3})});
  EXPECT_EQ(result.cached_tokens, 0);
}

TEST(PrefixesTest, PrefillWorkersHaveCachesAndDecodeWorkersToo) {
  SimulationOptions options = Cluster(1, 1);
  options.allow_local_prefill = false;
  // A hundred thousand bytes a second: 0.01 s for each token.
  options.profile.link_bytes_per_second = 1e5;
  const SimulationResult result =
      Serve(options, {At(0, 100, 2, {1, 2, 3}), At(50, 100, 2, {1, 2, 4})});
  EXPECT_EQ(result.finished, 2);
  EXPECT_EQ(result.local_prefills, 0);
  EXPECT_EQ(result.cached_tokens, 64);
  EXPECT_EQ(result.unsent_tokens, 64);
  EXPECT_EQ(result.prefill.prompt_tokens, 136);
  // 100 tokens from the first step's start; 36 of the second prompt.
  EXPECT_NEAR(result.longest_gap.max, 1000 - 101 + 2, 1e-3);
  EXPECT_NEAR(result.longest_gap.mean,
              ((1000 - 101 + 2) + (360 - 37 + 2)) / 2.0, 1e-3);
}

TEST(PrefixesTest, APromptOnAPrefillWorkerFindsItWhenItsTurnComes) {
  SimulationOptions options = Cluster(1, 1);
  options.allow_local_prefill = false;
  options.profile.prefill.token_budget = 100;
  // It comes while the one before it is computed.
  const SimulationResult result =
      Serve(options, {At(0, 100, 1, {1, 2, 3}), At(0.01, 100, 1, {1, 2, 3})});
  EXPECT_EQ(result.cached_tokens, 96);
}

TEST(PrefixesTest, ACacheHasNoMoreThanItMay) {
  SimulationOptions options = Cluster(0, 1);
  const std::vector<PlannedRequest> requests = {At(0, 100, 1, {1, 2, 3}),
                                                At(1, 100, 1, {4, 5, 6}),
                                                At(2, 100, 1, {1, 2, 3})};
  EXPECT_EQ(Serve(options, requests).cached_tokens, 96);
  // Of the first one, the end was evicted.
  options.prefix_cache_tokens = 5 * 32;
  EXPECT_EQ(Serve(options, requests).cached_tokens, 64);
  options.prefix_cache_tokens = 0;
  EXPECT_EQ(Serve(options, requests).cached_tokens, 0);
}

TEST(PrefixesTest, RunningSequencesTakeTheMemoryOfCaches) {
  SimulationOptions options = Cluster(0, 1);
  options.profile.decode.total_blocks = 8;
  const std::vector<PlannedRequest> requests = {
      At(0, 64, 1, {1, 2}), At(1, 112, 16, {3}), At(2, 80, 1, {1, 2})};
  EXPECT_EQ(Serve(options, requests).cached_tokens, 0);
  options.profile.decode.total_blocks = 10;
  EXPECT_EQ(Serve(options, requests).cached_tokens, 32);
  options.profile.decode.total_blocks = 12;
  EXPECT_EQ(Serve(options, requests).cached_tokens, 64);
}

TEST(PrefixesTest, SequencesWithTheSamePrefixShareItsBlocks) {
  SimulationOptions options = Cluster(0, 1);
  // The second one fits beside the first only because it shares six blocks.
  options.profile.decode.total_blocks = 12;
  const std::vector<PlannedRequest> requests = {At(0, 97, 40, {1, 2, 3}),
                                                At(0.11, 97, 40, {1, 2, 3})};
  const SimulationResult shared = Serve(options, requests);
  EXPECT_EQ(shared.cached_tokens, 96);
  EXPECT_LT(shared.ttft.max, 110);
  options.prefix_cache_tokens = 0;
  EXPECT_GT(Serve(options, requests).ttft.max, 120);
}

TEST(PrefixesTest, PlacementGoesWhereThePrefixIs) {
  std::vector<PlannedRequest> requests;
  for (int i = 0; i < 40; ++i) {
    const auto conversation = static_cast<uint64_t>(i % 5);
    requests.push_back(At(i, 500, 3, {conversation, 1, 2, 3, 4}));
  }
  // All but the first one of each.
  constexpr int64_t kMost = 35 * 160;
  for (const char* placement : {"prefix-affine", "cost-model"}) {
    EXPECT_EQ(Serve(Cluster(0, 4, placement), requests).cached_tokens, kMost)
        << placement;
    EXPECT_EQ(Serve(Cluster(4, 2, placement), requests).cached_tokens, kMost)
        << placement;
  }
  EXPECT_LT(Serve(Cluster(0, 4, "least-load"), requests).cached_tokens, kMost);
}

TEST(PrefixesTest, WithoutPrefixesCachesChangeNothing) {
  std::vector<PlannedRequest> requests;
  for (int i = 0; i < 200; ++i) {
    requests.push_back(At(0.05 * i, 50 + 7 * (i % 40), 1 + i % 30, {}));
  }
  SimulationOptions options = Cluster(2, 2);
  const SimulationResult with = Serve(options, requests);
  options.prefix_cache_tokens = 0;
  const SimulationResult without = Serve(options, requests);
  EXPECT_EQ(SimulationJson(with).dump(), SimulationJson(without).dump());
  EXPECT_EQ(with.cached_tokens, 0);
}

TEST(PrefixesTest, StepByStepIsTheSame) {
  std::vector<PlannedRequest> requests;
  for (int i = 0; i < 300; ++i) {
    requests.push_back(
        At(0.1 * i, 70 + 13 * (i % 30), 1 + i % 40,
           {static_cast<uint64_t>(i % 7), static_cast<uint64_t>(i % 3), 9}));
  }
  SimulationOptions options = Cluster(1, 2);
  // No two things happen at the same time by chance.
  for (WorkerProfile* worker :
       {&options.profile.prefill, &options.profile.decode}) {
    worker->cost = {.fixed = 0.00113713, .per_token = 0.00097171};
  }
  options.prefix_cache_tokens = 20 * 32;
  options.targets = {absl::Seconds(1), absl::Milliseconds(20)};
  const SimulationResult quick = Serve(options, requests);
  options.fast_forward = false;
  const SimulationResult slow = Serve(options, requests);
  EXPECT_GT(quick.cached_tokens, 0);
  EXPECT_EQ(quick.cached_tokens, slow.cached_tokens);
  EXPECT_EQ(quick.met, slow.met);
  EXPECT_NEAR(quick.ttft.p90, slow.ttft.p90, 1e-6);
}

TEST(PrefixesTest, ANegativeSizeIsRefused) {
  SimulationOptions options = Cluster(0, 1);
  options.prefix_cache_tokens = -1;
  EXPECT_FALSE(Validate(options).ok());
}

}  // namespace
}  // namespace baton::planner::prefixes_test
