// A worker that is killed under load: no stream hangs or says a wrong token.
#include <signal.h>

#include <atomic>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/synchronization/blocking_counter.h"
#include "tests/integration/client.h"
#include "tests/integration/cluster.h"
#include "tests/integration/reference.h"
#include "tests/support/tiny_model.h"

namespace baton::test {
namespace {

constexpr int kStreams = 24;

class FailureTest : public testing::Test {
 protected:
  void SetUp() override {
    model_dir_ = scratch_.path() + "/model";
    ASSERT_TRUE(WriteTinyModel(model_dir_).ok());
    auto reference = Reference::Load(model_dir_);
    ASSERT_TRUE(reference.ok()) << reference.status();
    reference_ = *std::move(reference);
  }

  // Half greedy, half sampled, each some hundred tokens long.
  std::vector<v1::GenerateRequest> MakeRequests() {
    std::mt19937_64 random(7);
    std::vector<v1::GenerateRequest> requests;
    for (int i = 0; i < kStreams; ++i) {
      std::vector<TokenId> prompt(20 + random() % 100);
      for (TokenId& id : prompt) {
        id = static_cast<TokenId>(random() % reference_->model().vocab_size);
      }
      requests.push_back(GreedyRequest(prompt, 350));
      if (i % 2 == 0) continue;
      requests.back().mutable_sampling()->set_temperature(1);
      requests.back().mutable_sampling()->set_seed(random());
    }
    return requests;
  }

  // Runs all requests at once over two prefill and two decode workers; kills
  // `victim` when every stream has its third token.
  std::vector<Answer> RunAndKill(
      const std::vector<v1::GenerateRequest>& requests,
      const std::string& victim) {
    cluster_ = std::make_unique<Cluster>(model_dir_);
    const absl::Status started =
        cluster_->Start({.prefill = {{}, {}}, .decode = {{}, {}}});
    EXPECT_TRUE(started.ok()) << started;
    if (!started.ok()) return {};
    stub_ = cluster_->MakeStub();
    std::vector<Answer> answers(requests.size());
    std::vector<std::thread> clients;
    absl::BlockingCounter streaming(static_cast<int>(requests.size()));
    for (size_t i = 0; i < requests.size(); ++i) {
      clients.emplace_back([&, i] {
        bool counted = false;
        const auto count = [&] {
          if (!std::exchange(counted, true)) streaming.DecrementCount();
        };
        answers[i] = Generate(*stub_, requests[i], 2 * kPatience,
                              [&](const v1::GenerateResponse&, size_t tokens) {
                                if (tokens >= 3) count();
                                return true;
                              });
        count();  // also a stream that ended before
      });
    }
    streaming.Wait();
    cluster_->Kill(victim);
    for (std::thread& client : clients) client.join();
    return answers;
  }

  // Every stream ended with the tokens that it would have had; how many were
  // placed again.
  int CheckAnswers(const std::vector<v1::GenerateRequest>& requests,
                   const std::vector<Answer>& answers) {
    int replaced = 0;
    for (size_t i = 0; i < answers.size(); ++i) {
      EXPECT_TRUE(answers[i].status.ok()) << i << ": " << answers[i].status;
      EXPECT_EQ(answers[i].tokens, reference_->Tokens(requests[i])) << i;
      if (answers[i].last.timing().retries() > 0) ++replaced;
    }
    return replaced;
  }

  // The cluster still serves.
  void CheckServes() {
    const v1::GenerateRequest request = GreedyRequest({1, 2, 3}, 10);
    const Answer answer = Generate(*stub_, request, kPatience);
    ASSERT_TRUE(answer.status.ok()) << answer.status;
    EXPECT_EQ(answer.tokens, reference_->Tokens(request));
  }

  ScratchDir scratch_;
  std::string model_dir_;
  std::unique_ptr<Reference> reference_;
  std::unique_ptr<Cluster> cluster_;
  std::unique_ptr<v1::Inference::Stub> stub_;
};

TEST_F(FailureTest, AKilledDecodeWorkersStreamsGoOnElsewhere) {
  const auto requests = MakeRequests();
  const std::vector<Answer> answers = RunAndKill(requests, "decode-0");
  ASSERT_EQ(answers.size(), requests.size());
  EXPECT_GT(CheckAnswers(requests, answers), 0) << "the kill hit no stream";
  CheckServes();
}

TEST_F(FailureTest, AKilledPrefillWorkerHurtsNoStream) {
  const auto requests = MakeRequests();
  const std::vector<Answer> answers = RunAndKill(requests, "prefill-0");
  ASSERT_EQ(answers.size(), requests.size());
  CheckAnswers(requests, answers);
  CheckServes();
}

TEST_F(FailureTest, WithoutItsOnlyDecodeWorkerTheClusterSaysSo) {
  cluster_ = std::make_unique<Cluster>(model_dir_);
  const absl::Status started = cluster_->Start({});
  ASSERT_TRUE(started.ok()) << started;
  stub_ = cluster_->MakeStub();
  bool killed = false;
  const Answer answer =
      Generate(*stub_, GreedyRequest({1, 2, 3}, 500), kPatience,
               [&](const v1::GenerateResponse&, size_t tokens) {
                 if (tokens >= 3 && !std::exchange(killed, true)) {
                   cluster_->Kill("decode-0");
                 }
                 return true;
               });
  EXPECT_TRUE(absl::IsUnavailable(answer.status)) << answer.status;
  EXPECT_NE(answer.status.message(), "");
  const Answer next = Generate(*stub_, GreedyRequest({1}, 5), kPatience);
  EXPECT_TRUE(absl::IsUnavailable(next.status)) << next.status;
}

TEST_F(FailureTest, ARestartedWorkerIsANewPeer) {
  cluster_ = std::make_unique<Cluster>(model_dir_);
  const absl::Status started = cluster_->Start({});
  ASSERT_TRUE(started.ok()) << started;
  stub_ = cluster_->MakeStub();
  CheckServes();
  const std::string address = cluster_->Address("decode-0", "grpc");
  cluster_->Kill("decode-0");
  ASSERT_TRUE(cluster_->process("decode-0").WaitExit(kPatience).ok());
  const absl::Status lost = cluster_->AwaitJoined(0, 0);
  ASSERT_TRUE(lost.ok()) << lost;
  auto again =
      cluster_->Launch("baton-decode", "decode-0", {"--listen", address});
  ASSERT_TRUE(again.ok()) << again.status();
  const absl::Status ready = (*again)->WaitReady(kPatience);
  ASSERT_TRUE(ready.ok()) << ready;
  const absl::Status joined = cluster_->AwaitJoined(1, 1);
  ASSERT_TRUE(joined.ok()) << joined;
  CheckServes();
}

TEST_F(FailureTest, SigtermEndsEveryProgramWithZero) {
  cluster_ = std::make_unique<Cluster>(model_dir_);
  const absl::Status started = cluster_->Start({});
  ASSERT_TRUE(started.ok()) << started;
  stub_ = cluster_->MakeStub();
  CheckServes();
  for (const char* name : {"router", "prefill-0", "decode-0"}) {
    cluster_->process(name).Signal(SIGTERM);
    const auto exit = cluster_->process(name).WaitExit(kPatience);
    ASSERT_TRUE(exit.ok()) << exit.status();
    EXPECT_EQ(exit->Describe(), "exit status 0") << name;
  }
}

}  // namespace
}  // namespace baton::test
