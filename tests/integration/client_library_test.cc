// The client library and the example that shows it, against a real cluster.
#include <atomic>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/synchronization/notification.h"
#include "client/client.h"
#include "tests/integration/client.h"
#include "tests/integration/cluster.h"
#include "tests/integration/reference.h"
#include "tests/support/tiny_model.h"

namespace baton::test {
namespace {

using ::testing::HasSubstr;
using ::testing::MatchesRegex;

using Response = v1::GenerateResponse;

class ClientLibraryTest : public testing::Test {
 protected:
  void SetUp() override {
    const std::string model_dir = scratch_.path() + "/tiny";
    ASSERT_TRUE(WriteTinyModel(model_dir).ok());
    cluster_ = std::make_unique<Cluster>(model_dir);
    const absl::Status started = cluster_->Start({});
    ASSERT_TRUE(started.ok()) << started;
    address_ = cluster_->Address("router", "grpc");
    auto reference = Reference::Load(model_dir);
    ASSERT_TRUE(reference.ok()) << reference.status();
    reference_ = *std::move(reference);
    auto client = client::Client::Connect({.address = address_});
    ASSERT_TRUE(client.ok()) << client.status();
    client_ = *std::move(client);
  }

  ScratchDir scratch_;
  std::unique_ptr<Cluster> cluster_;
  std::string address_;
  std::unique_ptr<Reference> reference_;
  std::unique_ptr<client::Client> client_;
};

TEST_F(ClientLibraryTest, TheExampleStreamsAnAnswer) {
  const RunResult told =
      RunProgram("baton-example-generate", {address_, "Once"});
  EXPECT_TRUE(told.exit.clean()) << told.err;
  EXPECT_THAT(told.err, MatchesRegex("[0-9]+ tokens after a prompt of 5\n"));

  v1::GenerateRequest request;
  request.set_text("Once");
  request.set_max_tokens(64);
  request.mutable_sampling()->set_temperature(0);
  std::string text;
  const absl::Status status =
      client_->Generate(request, {}, [&](const Response& response) {
        text += response.text();
        return true;
      });
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(told.out, text + "\n");
}

TEST_F(ClientLibraryTest, TheExampleSaysWhatIsWrong) {
  const RunResult refused =
      RunProgram("baton-example-generate", {address_, ""});
  EXPECT_EQ(refused.exit.Describe(), "exit status 1");
  EXPECT_THAT(refused.err, HasSubstr("INVALID_ARGUMENT: text is empty"));
  const RunResult nobody =
      RunProgram("baton-example-generate", {"127.0.0.1:1", "Once"});
  EXPECT_EQ(nobody.exit.Describe(), "exit status 1");
  EXPECT_THAT(nobody.err, HasSubstr("cannot connect to 127.0.0.1:1"));
}

TEST_F(ClientLibraryTest, ManyStreamsGiveTheTokensOfTheReference) {
  constexpr int kStreams = 48;
  std::mt19937 random(5);
  std::vector<v1::GenerateRequest> requests;
  std::vector<std::vector<TokenId>> tokens(kStreams);
  std::vector<std::unique_ptr<client::GenerateCall>> calls;
  for (int i = 0; i < kStreams; ++i) {
    std::vector<TokenId> prompt(1 + random() % 40);
    for (TokenId& id : prompt) id = static_cast<TokenId>(random() % 256);
    requests.push_back(GreedyRequest(prompt, 1 + random() % 20));
    calls.push_back(client_->StartGenerate(
        requests.back(), {.timeout = kPatience},
        [&answer = tokens[i]](const Response& response) {
          answer.insert(answer.end(), response.token_ids().begin(),
                        response.token_ids().end());
          return true;
        }));
  }
  for (int i = 0; i < kStreams; ++i) {
    const absl::Status status = calls[i]->Wait();
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_EQ(tokens[i], reference_->Tokens(requests[i]));
  }
}

TEST_F(ClientLibraryTest, CancelAndTimeoutEndACallOfTheCluster) {
  // Longer than any of this takes.
  const v1::GenerateRequest request = GreedyRequest({1, 2, 3}, 500);
  int responses = 0;
  EXPECT_EQ(client_
                ->Generate(request, {},
                           [&](const Response&) { return ++responses < 2; })
                .code(),
            absl::StatusCode::kCancelled);
  EXPECT_EQ(client_
                ->Generate(request, {.timeout = absl::Milliseconds(1)},
                           [](const Response&) { return true; })
                .code(),
            absl::StatusCode::kDeadlineExceeded);
  // All of them hear of it.
  EXPECT_TRUE(Eventually([&] {
    const auto cluster = client_->GetCluster();
    EXPECT_TRUE(cluster.ok()) << cluster.status();
    if (!cluster.ok()) return true;
    for (const v1::WorkerStatus& worker : cluster->workers()) {
      if (worker.running() > 0 || worker.waiting() > 0) return false;
    }
    return cluster->running_requests() == 0;
  }));
}

}  // namespace
}  // namespace baton::test
