#include "planner/roofline.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace baton::planner {
namespace {

using testing::HasSubstr;

// About Llama 3.1 8B.
ModelGeometry EightBillion() {
  return {.name = "8B",
          .layer_parameters = 7.0e9,
          .head_parameters = 0.5e9,
          .weight_bytes = 15e9,
          .kv_bytes_per_token = 131072,
          .num_layers = 32,
          .q_size = 4096,
          .max_context = 131072};
}

TEST(RooflineTest, FindsGpusByName) {
  ASSERT_TRUE(FindGpu("h200").ok());
  EXPECT_STREQ(FindGpu("h200")->name, "H200");
  EXPECT_THAT(std::string(FindGpu("H999").status().message()),
              HasSubstr("L40S"));
}

TEST(RooflineTest, AStepReadsTheWeightsAndATokenComputesThem) {
  const auto profile =
      RooflineProfile(*FindGpu("H200"), EightBillion(), RooflineOptions());
  ASSERT_TRUE(profile.ok()) << profile.status();
  EXPECT_TRUE(Validate(*profile).ok()) << Validate(*profile);
  const scheduling::StepCost& step = profile->decode.cost;
  // 15 GB at 3.84 TB/s, 14 GFLOP at 593 TFLOP/s.
  EXPECT_NEAR(step.fixed, 3.9e-3 + 0.5e-3, 0.1e-3);
  EXPECT_NEAR(step.per_token, 23.6e-6, 0.2e-6);
  // 128 KiB at 3.84 TB/s.
  EXPECT_NEAR(step.per_context_token, 34e-9, 1e-9);
  EXPECT_LT(profile->decode.cost.per_prompt_context_token,
            step.per_context_token / 10);
  // 109 GB of KV in blocks of 2 MiB.
  EXPECT_NEAR(profile->decode.total_blocks, 52000, 1000);
}

TEST(RooflineTest, DecodeStepsReadTheExpertsOfTheirStreams) {
  ModelGeometry mixture = EightBillion();
  mixture.decode_bytes = 5e9;
  const auto profile =
      RooflineProfile(*FindGpu("H200"), mixture, RooflineOptions());
  ASSERT_TRUE(profile.ok()) << profile.status();
  EXPECT_NEAR(profile->decode.cost.fixed, 1.3e-3 + 0.5e-3, 0.1e-3);
  EXPECT_NEAR(profile->prefill.cost.fixed, 3.9e-3 + 0.5e-3, 0.1e-3);
  EXPECT_THAT(profile->source, HasSubstr("reads 5 of 15 GB"));
}

TEST(RooflineTest, MoreGpusAreFaster) {
  RooflineOptions four;
  four.gpus_per_worker = 4;
  const auto one =
      RooflineProfile(*FindGpu("A100"), EightBillion(), RooflineOptions());
  const auto more = RooflineProfile(*FindGpu("A100"), EightBillion(), four);
  ASSERT_TRUE(one.ok() && more.ok());
  EXPECT_NEAR(one->prefill.cost.per_token / more->prefill.cost.per_token, 3.6,
              0.01);
  EXPECT_GT(more->decode.total_blocks, 4 * one->decode.total_blocks);
}

// Then they add nothing to how fast it is read.
TEST(RooflineTest, KvMayBeOnEachGpu) {
  RooflineOptions four;
  four.gpus_per_worker = 4;
  ModelGeometry latent = EightBillion();
  latent.kv_on_each_gpu = true;
  const auto shared = RooflineProfile(*FindGpu("H200"), EightBillion(), four);
  const auto each = RooflineProfile(*FindGpu("H200"), latent, four);
  ASSERT_TRUE(shared.ok() && each.ok());
  EXPECT_NEAR(shared->decode.total_blocks / 4, each->decode.total_blocks, 1);
  EXPECT_DOUBLE_EQ(4 * shared->decode.cost.per_context_token,
                   each->decode.cost.per_context_token);
  EXPECT_EQ(shared->kv_bytes_per_token, each->kv_bytes_per_token);
}

TEST(RooflineTest, SaysWhatDoesNotFit) {
  ModelGeometry large = EightBillion();
  large.weight_bytes = 140e9;
  const auto profile =
      RooflineProfile(*FindGpu("L4"), large, RooflineOptions());
  EXPECT_THAT(std::string(profile.status().message()),
              HasSubstr("--gpus-per-worker"));
}

}  // namespace
}  // namespace baton::planner
