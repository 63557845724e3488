#include "common/metrics/vllm_names.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/metrics/metrics.h"

namespace baton::metrics {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class VllmNamesTest : public testing::Test {
 protected:
  VllmNamesTest()
      : metrics_({{"model_name", "m"}, {"role", "decode"}, {"worker", "d0"}}) {}

  std::string Text() {
    metrics_.AddNames(Compat::kVllm);
    return metrics_.Text();
  }

  Metrics metrics_;
};

TEST_F(VllmNamesTest, OffByDefault) {
  metrics_.Gauge("baton_num_requests_running", "Running.")->Set(3);
  EXPECT_THAT(metrics_.Text(), Not(HasSubstr("vllm:")));
}

TEST_F(VllmNamesTest, ACopyUnderEachNameWithTheLabelsOfVllm) {
  metrics_.Gauge("baton_kv_cache_usage_perc", "Usage.")->Set(0.25);
  const std::string text = Text();
  for (const char* name :
       {"vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"}) {
    EXPECT_THAT(text, HasSubstr(std::string("# TYPE ") + name + " gauge\n"));
    EXPECT_THAT(text, HasSubstr(std::string("\n") + name +
                                "{engine=\"0\",model_name=\"m\"} 0.25\n"));
  }
  // Ours stay as they are.
  EXPECT_THAT(text, HasSubstr("baton_kv_cache_usage_perc{model_name=\"m\","
                              "role=\"decode\",worker=\"d0\"} 0.25\n"));
}

TEST_F(VllmNamesTest, HistogramsKeepTheirBuckets) {
  metrics_
      .Histogram("baton_inter_token_latency_seconds", "Gaps.", {0.01, 0.02})
      ->Observe(0.015);
  const std::string text = Text();
  for (const char* name : {"vllm:inter_token_latency_seconds",
                           "vllm:time_per_output_token_seconds"}) {
    const std::string bucket =
        std::string(name) + "_bucket{engine=\"0\",model_name=\"m\",le=";
    EXPECT_THAT(text, HasSubstr(bucket + "\"0.01\"} 0\n"));
    EXPECT_THAT(text, HasSubstr(bucket + "\"0.02\"} 1\n"));
    EXPECT_THAT(text, HasSubstr(bucket + "\"+Inf\"} 1\n"));
  }
}

TEST_F(VllmNamesTest, ReasonsAreThoseOfVllm) {
  const auto ended = [&](const char* reason) {
    return metrics_.Counter("baton_request_success_total", "Ended.",
                            {{"finished_reason", reason}});
  };
  ended("stop")->Increment(2);
  ended("cancelled")->Increment(5);
  const std::string text = Text();
  EXPECT_THAT(text,
              HasSubstr("vllm:request_success_total{engine=\"0\","
                        "finished_reason=\"stop\",model_name=\"m\"} 2\n"));
  EXPECT_THAT(text,
              HasSubstr("vllm:request_success_total{engine=\"0\","
                        "finished_reason=\"abort\",model_name=\"m\"} 5\n"));
}

TEST_F(VllmNamesTest, WhatVllmDoesNotTellApartIsAddedUp) {
  for (const char* way : {"recompute", "swap"}) {
    metrics_.Counter("baton_preemptions_total", "Preempted.", {{"way", way}})
        ->Increment(4);
  }
  EXPECT_THAT(Text(), HasSubstr("vllm:num_preemptions_total{engine=\"0\","
                                "model_name=\"m\"} 8\n"));
}

TEST_F(VllmNamesTest, TheSizeOfTheCacheIsInItsLabels) {
  metrics_
      .Gauge("baton_cache_config_info", "Config.",
             {{"block_size", "16"}, {"num_gpu_blocks", "128"}})
      ->Set(1);
  EXPECT_THAT(Text(),
              HasSubstr("vllm:cache_config_info{block_size=\"16\",engine=\"0\","
                        "model_name=\"m\",num_gpu_blocks=\"128\"} 1\n"));
}

TEST_F(VllmNamesTest, WhatIsNotMeasuredIsNotThere) {
  metrics_.Counter("baton_steps_total", "Steps.");
  EXPECT_THAT(Text(), Not(HasSubstr("vllm:")));
}

}  // namespace
}  // namespace baton::metrics
