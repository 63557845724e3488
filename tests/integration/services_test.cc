// What an operator's tools find: metrics, health and reflection of every
// program.
#include <signal.h>

#include <fstream>
#include <memory>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "common/json.h"
#include "tests/integration/client.h"
#include "tests/integration/cluster.h"
#include "tests/integration/raw_call.h"
#include "tests/support/gguf_writer.h"
#include "tests/support/tiny_model.h"

namespace baton::test {
namespace {

using ::testing::HasSubstr;

// HealthCheckResponse {status: SERVING} and {status: NOT_SERVING}; field 1.
constexpr char kServing[] = "\x08\x01";
constexpr char kNotServing[] = "\x08\x02";
constexpr char kHealthCheck[] = "/grpc.health.v1.Health/Check";
// ServerReflectionRequest {list_services: ""}; field 7.
constexpr char kListServices[] = {0x3a, 0x00};
constexpr char kReflection[] =
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo";

class ServicesTest : public testing::Test {
 protected:
  void SetUp() override {
    const std::string model_dir = scratch_.path() + "/model";
    ASSERT_TRUE(WriteTinyModel(model_dir).ok());
    cluster_ = std::make_unique<Cluster>(model_dir);
    const absl::Status started = cluster_->Start({});
    ASSERT_TRUE(started.ok()) << started;
  }

  ScratchDir scratch_;
  std::unique_ptr<Cluster> cluster_;
};

TEST_F(ServicesTest, DoctorShowsTheLinks) {
  const std::string router = cluster_->Address("router", "grpc");
  // Measured in the background once the workers are paired.
  RunResult result;
  EXPECT_TRUE(Eventually([&] {
    result = RunProgram("baton", {"doctor", "--router", router});
    return absl::StrContains(result.out, "GB/s") ||
           absl::StrContains(result.out, "MB/s");
  })) << result.out
      << result.err;
  EXPECT_TRUE(result.exit.clean()) << result.out;
  EXPECT_THAT(result.out, HasSubstr("prefill-0"));
  EXPECT_THAT(result.out, HasSubstr("decode-0"));
  const auto metrics =
      HttpGet(cluster_->Address("prefill-0", "metrics"), "/metrics");
  ASSERT_TRUE(metrics.ok()) << metrics.status();
  EXPECT_GT(MetricValue(*metrics, "baton_kv_link_bandwidth_bytes"), 0);
  EXPECT_GT(MetricValue(*metrics, "baton_kv_link_latency_seconds"), 0);
}

TEST_F(ServicesTest, MetricsCountWhatWasDone) {
  const auto stub = cluster_->MakeStub();
  const Answer answer =
      Generate(*stub, GreedyRequest({1, 2, 3, 4, 5}, 8), kPatience);
  ASSERT_TRUE(answer.status.ok()) << answer.status;
  const auto metrics = [&](const std::string& name) {
    const auto text = HttpGet(cluster_->Address(name, "metrics"), "/metrics");
    EXPECT_TRUE(text.ok()) << name << ": " << text.status();
    return text.ok() ? *text : "";
  };
  // Outcomes reach the router, and gauges their scrapers, a little later.
  EXPECT_TRUE(Eventually([&] {
    return absl::StrContains(metrics("router"),
                             "baton_time_to_first_token_seconds_count");
  }));
  const std::string router = metrics("router");
  for (const char* name :
       {"baton_time_to_first_token_seconds_bucket",
        "baton_inter_token_latency_seconds_bucket",
        "baton_ttft_stage_seconds_bucket", "baton_prompt_tokens_total",
        "baton_generation_tokens_total", "baton_num_requests_running",
        "baton_num_requests_waiting"}) {
    EXPECT_THAT(router, HasSubstr(name));
  }
  const std::string prefill = metrics("prefill-0");
  const std::string decode = metrics("decode-0");
  for (const std::string& worker : {prefill, decode}) {
    for (const char* name :
         {"baton_step_seconds_bucket", "baton_kv_blocks_in_use",
          "baton_num_requests_running", "baton_kv_transfer_bytes"}) {
      EXPECT_THAT(worker, HasSubstr(name));
    }
    EXPECT_THAT(worker, HasSubstr("# HELP baton_step_seconds "));
  }
  EXPECT_EQ(HttpGet(cluster_->Address("router", "metrics"), "/nothing")
                .status()
                .code(),
            absl::StatusCode::kUnavailable);
}

// What the endpoint picker of the Gateway API Inference Extension reads of
// workers, and public dashboards of vLLM of the whole.
TEST(MetricsCompatTest, TheNamesOfVllmAreThereWhenAskedFor) {
  const ScratchDir scratch;
  const std::string model_dir = scratch.path() + "/model";
  ASSERT_TRUE(WriteTinyModel(model_dir).ok());
  const Flags compat = {"--metrics-compat", "vllm"};
  Cluster cluster(model_dir);
  const absl::Status started = cluster.Start(
      {.prefill = {compat}, .decode = {compat}, .router = compat});
  ASSERT_TRUE(started.ok()) << started;
  const auto stub = cluster.MakeStub();
  const Answer answer =
      Generate(*stub, GreedyRequest({1, 2, 3, 4, 5}, 8), kPatience);
  ASSERT_TRUE(answer.status.ok()) << answer.status;
  const auto metrics = [&](const std::string& name) {
    const auto text = HttpGet(cluster.Address(name, "metrics"), "/metrics");
    EXPECT_TRUE(text.ok()) << name << ": " << text.status();
    return text.ok() ? *text : "";
  };
  for (const char* worker : {"prefill-0", "decode-0"}) {
    const std::string text = metrics(worker);
    for (const char* name :
         {"vllm:num_requests_running{engine=\"0\",model_name=\"model\"}",
          "vllm:num_requests_waiting{engine=\"0\",model_name=\"model\"}",
          "vllm:kv_cache_usage_perc{engine=\"0\",model_name=\"model\"}",
          "vllm:cache_config_info{block_size=\"16\","}) {
      EXPECT_THAT(text, HasSubstr(name)) << worker;
    }
  }
  const std::string router = metrics("router");
  EXPECT_EQ(MetricValue(router, "vllm:generation_tokens_total"), 8);
  for (const char* name :
       {"vllm:time_to_first_token_seconds_bucket{",
        "vllm:inter_token_latency_seconds_bucket{",
        "vllm:e2e_request_latency_seconds_count{",
        "vllm:request_queue_time_seconds_sum{", "finished_reason=\"length\""}) {
    EXPECT_THAT(router, HasSubstr(name));
  }
  // The same numbers, at the router's HTTP port.
  const auto at_http = HttpGet(cluster.Address("router", "http"), "/metrics");
  ASSERT_TRUE(at_http.ok()) << at_http.status();
  EXPECT_EQ(MetricValue(*at_http, "vllm:generation_tokens_total"), 8);
}

// A query over a cluster's metrics joins them by the label.
TEST(MetricsLabelsTest, AllProcessesOfAGgufFileNameItTheSame) {
  const ScratchDir scratch;
  const std::string dir = scratch.path() + "/directory";
  ASSERT_TRUE(WriteTinyModel(dir).ok());
  std::ifstream tokenizer(dir + "/tokenizer.json");
  GgufWriter writer = GgufOfModelDir(dir);
  AddGgufTokenizer(nlohmann::json::parse(tokenizer), "gpt-2", writer);
  const std::string file = scratch.path() + "/tiny.gguf";
  std::ofstream(file, std::ios::binary) << writer.Finish();

  Cluster cluster(file);
  const absl::Status started = cluster.Start({});
  ASSERT_TRUE(started.ok()) << started;
  for (const char* name : {"router", "prefill-0", "decode-0"}) {
    const auto metrics = HttpGet(cluster.Address(name, "metrics"), "/metrics");
    ASSERT_TRUE(metrics.ok()) << name << ": " << metrics.status();
    EXPECT_THAT(*metrics, HasSubstr("model_name=\"tiny\"")) << name;
  }
}

TEST_F(ServicesTest, HealthOfARouterIsWhetherItCanServe) {
  const std::string router = cluster_->Address("router", "grpc");
  for (const char* name : {"prefill-0", "decode-0", "router"}) {
    const auto health =
        RawCall(cluster_->Address(name, "grpc"), kHealthCheck, "");
    ASSERT_TRUE(health.ok()) << name << ": " << health.status();
    EXPECT_EQ(*health, kServing) << name;
  }
  cluster_->Kill("decode-0");
  EXPECT_TRUE(Eventually([&] {
    const auto health = RawCall(router, kHealthCheck, "");
    return health.ok() && *health == kNotServing;
  }));
}

TEST_F(ServicesTest, ReflectionListsTheServices) {
  const auto services = [&](const std::string& name) {
    const auto answer =
        RawCall(cluster_->Address(name, "grpc"), kReflection,
                std::string(kListServices, sizeof(kListServices)));
    EXPECT_TRUE(answer.ok()) << name << ": " << answer.status();
    return answer.ok() ? *answer : "";
  };
  EXPECT_THAT(services("router"), HasSubstr("baton.v1.Inference"));
  EXPECT_THAT(services("router"), HasSubstr("grpc.health.v1.Health"));
  EXPECT_THAT(services("decode-0"), HasSubstr("baton.v1.WorkerControl"));
  EXPECT_THAT(services("prefill-0"), HasSubstr("baton.v1.WorkerControl"));
}

}  // namespace
}  // namespace baton::test
