#include "tests/integration/streams_fixture.h"

#include <signal.h>

#include <algorithm>
#include <random>
#include <thread>
#include <utility>

#include "absl/synchronization/blocking_counter.h"
#include "tests/integration/raw_call.h"
#include "tests/support/await_that.h"
#include "tests/support/tiny_model.h"

namespace baton::test {

void StreamsTest::SetUp() {
  model_dir_ = scratch_.path() + "/model";
  ASSERT_TRUE(WriteTinyModel(model_dir_).ok());
  auto reference = Reference::Load(model_dir_);
  ASSERT_TRUE(reference.ok()) << reference.status();
  reference_ = *std::move(reference);
}

std::vector<v1::GenerateRequest> StreamsTest::MakeRequests(int count) {
  std::mt19937_64 random(7);
  std::vector<v1::GenerateRequest> requests;
  for (int i = 0; i < count; ++i) {
    std::vector<TokenId> prompt(20 + random() % 100);
    for (TokenId& id : prompt) {
      id = static_cast<TokenId>(random() % reference_->model().vocab_size);
    }
    requests.push_back(GreedyRequest(prompt, 350));
    if (i % 3 == 0) requests.back().set_prompt_logprobs(i % 4);
    if (i % 2 == 0) continue;
    requests.back().mutable_sampling()->set_temperature(1);
    requests.back().mutable_sampling()->set_seed(random());
  }
  return requests;
}

void StreamsTest::StartCluster(const ClusterShape& shape) {
  if (cluster_ == nullptr) cluster_ = std::make_unique<Cluster>(model_dir_);
  const absl::Status started = cluster_->Start(shape);
  ASSERT_TRUE(started.ok()) << started;
  stub_ = cluster_->MakeStub();
}

std::vector<Answer> StreamsTest::RunAndInterrupt(
    const std::vector<v1::GenerateRequest>& requests,
    const std::function<void()>& interrupt) {
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
  interrupt();
  for (std::thread& client : clients) client.join();
  return answers;
}

bool StreamsTest::InterruptUntilHit(
    const std::vector<v1::GenerateRequest>& requests,
    const std::function<void()>& interrupt, const std::function<void()>& mend) {
  constexpr int kRounds = 5;
  for (int round = 0; round < kRounds && !HasFatalFailure(); ++round) {
    if (round > 0) mend();
    if (CheckAnswers(requests, RunAndInterrupt(requests, interrupt)) > 0) {
      return true;
    }
  }
  return false;
}

void StreamsTest::CheckKilledDecodeWorker(
    const std::vector<v1::GenerateRequest>& requests) {
  StartTwoPairs();
  const bool hit = InterruptUntilHit(
      requests, [&] { cluster_->Kill("decode-0"); },
      [&] {
        LaunchAgain("baton-decode", "decode-0");
        CheckJoined(2, 2);
      });
  EXPECT_TRUE(hit) << "the kill hit no stream";
}

int StreamsTest::CheckAnswers(const std::vector<v1::GenerateRequest>& requests,
                              const std::vector<Answer>& answers) {
  EXPECT_EQ(answers.size(), requests.size());
  int replaced = 0;
  for (size_t i = 0; i < answers.size(); ++i) {
    EXPECT_TRUE(answers[i].status.ok()) << i << ": " << answers[i].status;
    EXPECT_EQ(answers[i].tokens, reference_->Tokens(requests[i])) << i;
    EXPECT_EQ(answers[i].prompt_logprobs,
              reference_->PromptLogprobs(requests[i]))
        << i;
    if (answers[i].last.timing().retries() > 0) ++replaced;
  }
  return replaced;
}

bool StreamsTest::AwaitAdapters(const std::vector<std::string>& names) {
  return AwaitThat([&] {
    grpc::ClientContext context;
    v1::GetClusterResponse cluster;
    if (!stub_->GetCluster(&context, {}, &cluster).ok()) return false;
    return std::all_of(cluster.workers().begin(), cluster.workers().end(),
                       [&](const v1::WorkerStatus& worker) {
                         std::vector<std::string> its(worker.adapters().begin(),
                                                      worker.adapters().end());
                         std::sort(its.begin(), its.end());
                         return its == names;
                       });
  });
}

void StreamsTest::CheckServes() {
  const v1::GenerateRequest request = GreedyRequest({1, 2, 3}, 10);
  const Answer answer = Generate(*stub_, request, kPatience);
  ASSERT_TRUE(answer.status.ok()) << answer.status;
  EXPECT_EQ(answer.tokens, reference_->Tokens(request));
}

void StreamsTest::RestartWorker(const std::string& program,
                                const std::string& name) {
  cluster_->process(name).Signal(SIGTERM);
  const auto exit = cluster_->process(name).WaitExit(kPatience);
  ASSERT_TRUE(exit.ok()) << exit.status();
  EXPECT_EQ(exit->Describe(), "exit status 0") << name;
  LaunchAgain(program, name);
}

void StreamsTest::LaunchAgain(const std::string& program,
                              const std::string& name) {
  const auto exit = cluster_->process(name).WaitExit(kPatience);
  ASSERT_TRUE(exit.ok()) << exit.status();
  const std::string address = cluster_->Address(name, "grpc");
  auto again = cluster_->Launch(program, name, {"--listen", address});
  ASSERT_TRUE(again.ok()) << again.status();
  const absl::Status ready = (*again)->WaitReady(kPatience);
  ASSERT_TRUE(ready.ok()) << ready;
}

void StreamsTest::CheckJoined(int num_prefill, int num_decode) {
  const absl::Status joined = cluster_->AwaitJoined(num_prefill, num_decode);
  ASSERT_TRUE(joined.ok()) << joined;
}

void StreamsTest::AwaitBlocksFree(const std::vector<std::string>& workers) {
  for (const std::string& name : workers) {
    EXPECT_TRUE(Eventually([&] {
      const auto metrics =
          HttpGet(cluster_->Address(name, "metrics"), "/metrics");
      return metrics.ok() &&
             MetricValue(*metrics, "baton_kv_blocks_in_use") == 0;
    })) << name;
  }
}

}  // namespace baton::test
