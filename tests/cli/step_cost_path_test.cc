// What a worker measured of its steps, on the way from its report over the
// router's registry and cluster status to a plan's profile: no term is lost,
// none takes another's place.
#include <gtest/gtest.h>

#include "cli/measured_profile.h"
#include "router/cluster_status.h"
#include "router/worker_registry.h"
#include "tests/support/fake_worker.h"
#include "worker/publisher.h"

namespace baton::cli {
namespace {

using scheduling::StepCost;
using scheduling::WorkerRole;
using test::FakeWorker;

const absl::Time kStart = absl::UnixEpoch() + absl::Seconds(100);
// All terms differ.
constexpr StepCost kCost = {.fixed = 3e-3,
                            .per_token = 5e-4,
                            .per_context_token = 7e-7,
                            .per_sequence = 11e-5,
                            .per_prompt_context_token = 13e-8};

void ExpectIsMeasured(const StepCost& cost) {
  EXPECT_DOUBLE_EQ(cost.fixed, kCost.fixed);
  EXPECT_DOUBLE_EQ(cost.per_token, kCost.per_token);
  EXPECT_DOUBLE_EQ(cost.per_context_token, kCost.per_context_token);
  EXPECT_DOUBLE_EQ(cost.per_sequence, kCost.per_sequence);
  EXPECT_DOUBLE_EQ(cost.per_prompt_context_token,
                   kCost.per_prompt_context_token);
}

TEST(StepCostPathTest, AllTermsComeThrough) {
  router::ServedModel model;
  model.architecture = "LlamaForCausalLM";
  model.vocab_size = 2048;
  model.num_layers = 6;
  model.max_context = 512;
  router::WorkerRegistry registry(model, {}, kStart);
  const int decode = registry.Add(WorkerRole::kDecode, "d:1");
  registry.Connected(decode, FakeWorker::Hello(v1::WORKER_ROLE_DECODE, "d0"),
                     kStart);
  v1::LoadReport load;
  worker::SetStepCost(kCost, &load);
  registry.Reported(decode, load, kStart);

  ASSERT_EQ(registry.snapshot().workers.size(), 1u);
  ExpectIsMeasured(registry.snapshot().workers[0].step_cost);
  const auto profile =
      MeasuredProfile({router::DescribeCluster(registry, kStart)});
  ASSERT_TRUE(profile.ok()) << profile.status();
  ExpectIsMeasured(profile->decode.cost);
}

TEST(StepCostPathTest, WhatIsNotKnownIsNotReported) {
  v1::LoadReport load;
  worker::SetStepCost({}, &load);
  EXPECT_FALSE(load.has_step_cost());
}

}  // namespace
}  // namespace baton::cli
