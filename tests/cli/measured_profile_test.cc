#include "cli/measured_profile.h"

#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace baton::cli {
namespace {

v1::WorkerStatus* AddMeasuredWorker(const char* role, double fixed,
                                    v1::GetClusterResponse* cluster) {
  v1::WorkerStatus* worker = cluster->add_workers();
  worker->set_role(role);
  worker->set_total_blocks(500);
  v1::WorkerCosts* costs = worker->mutable_costs();
  costs->set_block_size(16);
  costs->set_max_sequences(64);
  costs->set_max_context(2048);
  costs->set_token_budget(256);
  costs->set_kv_bytes_per_token(1 << 16);
  costs->set_num_layers(12);
  costs->set_fixed_seconds(fixed);
  costs->set_seconds_per_token(fixed / 10);
  costs->set_seconds_per_context_token(fixed / 1e6);
  return worker;
}

TEST(MeasuredProfileTest, TakesTheMeanOfThoseThatKnow) {
  v1::GetClusterResponse cluster;
  AddMeasuredWorker("decode", 0.010, &cluster);
  AddMeasuredWorker("decode", 0.020, &cluster)->set_total_blocks(400);
  AddMeasuredWorker("decode", 0, &cluster);
  AddMeasuredWorker("prefill", 0.030, &cluster)
      ->mutable_costs()
      ->set_seconds_per_prompt_context_token(3e-9);
  for (const double bandwidth : {1e9, 0.0, 5e9, 2e9}) {
    v1::LinkStatus* link = cluster.add_links();
    link->set_bandwidth_bytes(bandwidth);
    link->set_latency_seconds(bandwidth / 1e15);
  }
  const auto profile = MeasuredProfile({cluster});
  ASSERT_TRUE(profile.ok()) << profile.status();
  EXPECT_DOUBLE_EQ(profile->decode.cost.fixed, 0.015);
  EXPECT_DOUBLE_EQ(profile->decode.cost.per_token, 0.0015);
  EXPECT_EQ(profile->decode.total_blocks, 400);
  // Where workers say nothing of it.
  EXPECT_DOUBLE_EQ(profile->decode.cost.per_prompt_context_token, 1.5e-8);
  EXPECT_DOUBLE_EQ(profile->prefill.cost.per_prompt_context_token, 3e-9);
  EXPECT_DOUBLE_EQ(profile->prefill.cost.fixed, 0.030);
  EXPECT_EQ(profile->kv_bytes_per_token, 1 << 16);
  EXPECT_EQ(profile->num_layers, 12);
  EXPECT_EQ(profile->link_bytes_per_second, 2e9);
  EXPECT_DOUBLE_EQ(profile->link_latency_seconds, 2e-6);
}

// Steps differ by chance, and what workers measured by one moment with them.
TEST(MeasuredProfileTest, TakesTheMeanOfAllTimes) {
  std::vector<v1::GetClusterResponse> times(3);
  AddMeasuredWorker("decode", 0, &times[0]);
  AddMeasuredWorker("decode", 0.010, &times[1])->set_total_blocks(300);
  AddMeasuredWorker("decode", 0.030, &times[2]);
  AddMeasuredWorker("prefill", 0.040, &times[2]);
  times[1].add_links()->set_bandwidth_bytes(3e9);
  const auto profile = MeasuredProfile(times);
  ASSERT_TRUE(profile.ok()) << profile.status();
  EXPECT_DOUBLE_EQ(profile->decode.cost.fixed, 0.020);
  EXPECT_DOUBLE_EQ(profile->prefill.cost.fixed, 0.040);
  EXPECT_EQ(profile->decode.total_blocks, 300);
  EXPECT_EQ(profile->link_bytes_per_second, 3e9);
  EXPECT_EQ(profile->source,
            "measured by 1 prefill and 1 decode workers of a cluster");
}

// Where steps are all of one kind, all that they take may be that of one term.
TEST(MeasuredProfileTest, AnyTermIsKnowledge) {
  v1::GetClusterResponse cluster;
  AddMeasuredWorker("decode", 0, &cluster)
      ->mutable_costs()
      ->set_seconds_per_sequence(0.003);
  const auto profile = MeasuredProfile({cluster});
  ASSERT_TRUE(profile.ok()) << profile.status();
  EXPECT_EQ(profile->decode.cost.fixed, 0);
  EXPECT_EQ(profile->decode.cost.per_sequence, 0.003);
}

TEST(MeasuredProfileTest, PrefillWorkersThatKnowNothingAreAsTheOthers) {
  v1::GetClusterResponse cluster;
  AddMeasuredWorker("decode", 0.010, &cluster);
  AddMeasuredWorker("prefill", 0, &cluster);
  const auto profile = MeasuredProfile({cluster});
  ASSERT_TRUE(profile.ok()) << profile.status();
  EXPECT_DOUBLE_EQ(profile->prefill.cost.fixed, 0.010);
  EXPECT_EQ(profile->link_bytes_per_second, 0);
}

TEST(MeasuredProfileTest, SaysWhatToDoWhenNothingWasMeasured) {
  v1::GetClusterResponse cluster;
  AddMeasuredWorker("decode", 0, &cluster);
  const auto profile = MeasuredProfile({cluster});
  EXPECT_TRUE(absl::IsFailedPrecondition(profile.status()));
  EXPECT_THAT(std::string(profile.status().message()),
              testing::HasSubstr("bench serve"));
}

// Whatever a router of another release says.
TEST(MeasuredProfileTest, HoldsAgainstNumbersThatMakeNoSense) {
  v1::GetClusterResponse cluster;
  v1::WorkerStatus* worker = AddMeasuredWorker("decode", 0.010, &cluster);
  worker->mutable_costs()->set_token_budget(0);
  worker->mutable_costs()->set_max_sequences(4'000'000'000u);
  worker->mutable_costs()->set_kv_bytes_per_token(~uint64_t{0});
  const auto profile = MeasuredProfile({cluster});
  ASSERT_TRUE(profile.ok()) << profile.status();
  EXPECT_EQ(profile->decode.token_budget, 1);
  EXPECT_EQ(profile->decode.max_sequences, 1);
  EXPECT_GT(profile->kv_bytes_per_token, 0);
}

}  // namespace
}  // namespace baton::cli
