// Placement by predicted delay, with real workers that measure their steps: it
// must not change any answer.
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "tests/integration/client.h"
#include "tests/integration/cluster.h"
#include "tests/integration/raw_call.h"
#include "tests/integration/reference.h"
#include "tests/support/tiny_model.h"

namespace baton::test {
namespace {

TEST(CostPlacementTest, AnswersStayTheSameAndCostsDecide) {
  const ScratchDir scratch;
  const std::string model_dir = scratch.path() + "/model";
  ASSERT_TRUE(WriteTinyModel(model_dir).ok());
  auto reference = Reference::Load(model_dir);
  ASSERT_TRUE(reference.ok()) << reference.status();
  Cluster cluster(model_dir);
  ClusterShape shape;
  shape.prefill = {{}, {}};
  shape.decode = {{}, {}};
  shape.router = {"--placement", "cost-model"};
  const absl::Status started = cluster.Start(shape);
  ASSERT_TRUE(started.ok()) << started;
  const absl::Status joined = cluster.AwaitJoined(2, 2);
  ASSERT_TRUE(joined.ok()) << joined;
  const auto stub = cluster.MakeStub();
  std::mt19937_64 random(20261122);
  std::uniform_int_distribution<TokenId> token(
      0, (*reference)->model().vocab_size - 1);
  const auto ask = [&](int at_a_time) {
    std::vector<v1::GenerateRequest> requests;
    for (int i = 0; i < at_a_time; ++i) {
      std::vector<TokenId> prompt(20 + 10 * i);
      for (TokenId& id : prompt) id = token(random);
      requests.push_back(GreedyRequest(prompt, 12));
      requests.back().mutable_target()->set_ttft_ms(50);
    }
    std::vector<Answer> answers(requests.size());
    std::vector<std::thread> clients;
    for (size_t i = 0; i < requests.size(); ++i) {
      clients.emplace_back(
          [&, i] { answers[i] = Generate(*stub, requests[i], kPatience); });
    }
    for (std::thread& client : clients) client.join();
    for (size_t i = 0; i < requests.size(); ++i) {
      EXPECT_TRUE(answers[i].status.ok()) << answers[i].status;
      EXPECT_EQ(answers[i].tokens, (*reference)->Tokens(requests[i]));
    }
  };
  const auto metrics = [&](const char* name) {
    const auto page = HttpGet(cluster.Address(name, "metrics"), "/metrics");
    return page.ok() ? *page : "";
  };
  // Load decides until the workers have told what their steps cost.
  EXPECT_TRUE(Eventually([&] {
    ask(1);
    return absl::StrContains(metrics("router"), "reason=\"least_delay\"");
  }));
  for (int i = 0; i < 3; ++i) ask(8);
  EXPECT_GT(
      MetricValue(metrics("router"), "baton_placement_ttft_error_ratio_count"),
      0);
  EXPECT_GT(
      MetricValue(metrics("router"), "baton_placement_tpot_error_ratio_count"),
      0);
  EXPECT_GE(
      MetricValue(metrics("decode-0"), "baton_step_prediction_error_ratio"), 0);
}

}  // namespace
}  // namespace baton::test
