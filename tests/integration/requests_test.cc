// Requests that cannot be served, or end early: a clear error, and a cluster
// that serves the next one.
#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/integration/client.h"
#include "tests/integration/cluster.h"
#include "tests/integration/reference.h"
#include "tests/support/tiny_model.h"

namespace baton::test {
namespace {

using ::testing::HasSubstr;

constexpr uint32_t kContext = 512;

class RequestsTest : public testing::Test {
 protected:
  void SetUp() override {
    const std::string model_dir = scratch_.path() + "/model";
    TinyModelOptions options;
    options.max_position = kContext;
    ASSERT_TRUE(WriteTinyModel(model_dir, options).ok());
    cluster_ = std::make_unique<Cluster>(model_dir);
    const absl::Status started = cluster_->Start({});
    ASSERT_TRUE(started.ok()) << started;
    stub_ = cluster_->MakeStub();
    auto reference = Reference::Load(model_dir);
    ASSERT_TRUE(reference.ok()) << reference.status();
    reference_ = *std::move(reference);
  }

  // Ends every test: whatever came before, the next request is served.
  void TearDown() override {
    if (reference_ == nullptr) return;
    const v1::GenerateRequest request = GreedyRequest({5, 6, 7}, 10);
    const Answer answer = Generate(*stub_, request, kPatience);
    ASSERT_TRUE(answer.status.ok()) << answer.status;
    EXPECT_EQ(answer.tokens, reference_->Tokens(request));
  }

  void ExpectInvalid(const v1::GenerateRequest& request,
                     const std::string& field) {
    const Answer answer = Generate(*stub_, request, kPatience);
    EXPECT_TRUE(absl::IsInvalidArgument(answer.status))
        << field << ": " << answer.status;
    EXPECT_THAT(std::string(answer.status.message()), HasSubstr(field));
    EXPECT_THAT(answer.tokens, testing::IsEmpty());
  }

  ScratchDir scratch_;
  std::unique_ptr<Cluster> cluster_;
  std::unique_ptr<v1::Inference::Stub> stub_;
  std::unique_ptr<Reference> reference_;
};

TEST_F(RequestsTest, BadPrompts) {
  ExpectInvalid(GreedyRequest({}, 4), "token_ids");
  v1::GenerateRequest request = GreedyRequest({}, 4);
  request.set_text("");
  ExpectInvalid(request, "text");
  request.clear_text();
  ExpectInvalid(request, "prompt");
  ExpectInvalid(GreedyRequest({1, 320}, 4), "token_ids");
  // As long as the context: no room for an answer.
  ExpectInvalid(GreedyRequest(std::vector<TokenId>(kContext, 3), 4), "prompt");
  ExpectInvalid(GreedyRequest(std::vector<TokenId>(100'000, 3), 4), "prompt");
}

TEST_F(RequestsTest, TheLongestPromptThatFitsIsServed) {
  const v1::GenerateRequest request =
      GreedyRequest(std::vector<TokenId>(kContext - 1, 3), 1);
  const Answer answer = Generate(*stub_, request, kPatience);
  ASSERT_TRUE(answer.status.ok()) << answer.status;
  EXPECT_EQ(answer.tokens, reference_->Tokens(request));
  EXPECT_EQ(answer.last.finish_reason(), v1::FINISH_REASON_LENGTH);
}

TEST_F(RequestsTest, TheContextEndsAnAnswerWithoutMaxTokens) {
  v1::GenerateRequest request =
      GreedyRequest(std::vector<TokenId>(kContext - 10, 3), 1);
  request.clear_max_tokens();
  const Answer answer = Generate(*stub_, request, kPatience);
  ASSERT_TRUE(answer.status.ok()) << answer.status;
  EXPECT_EQ(answer.tokens.size(), 10u);
  EXPECT_EQ(answer.last.finish_reason(), v1::FINISH_REASON_LENGTH);
}

// A prompt may take the whole context where nothing is to come after it.
TEST_F(RequestsTest, APromptAlone) {
  for (const uint32_t length : {kContext, uint32_t{1}}) {
    v1::GenerateRequest request =
        GreedyRequest(std::vector<TokenId>(length, 3), 0);
    request.set_top_logprobs(2);
    request.set_prompt_logprobs(0);
    const Answer answer = Generate(*stub_, request, kPatience);
    ASSERT_TRUE(answer.status.ok()) << answer.status;
    EXPECT_TRUE(answer.tokens.empty());
    EXPECT_TRUE(answer.text.empty());
    EXPECT_EQ(answer.prompt_logprobs.size(), length - 1);
    EXPECT_EQ(answer.last.logprobs_size(), 0);
    EXPECT_EQ(answer.last.finish_reason(), v1::FINISH_REASON_LENGTH);
    EXPECT_EQ(answer.last.usage().prompt_tokens(), length);
    EXPECT_EQ(answer.last.usage().output_tokens(), 0u);
    EXPECT_GT(answer.last.timing().ttft_seconds(), 0);
  }
  v1::GenerateRequest request =
      GreedyRequest(std::vector<TokenId>(kContext + 1, 3), 0);
  ExpectInvalid(request, "prompt");
}

TEST_F(RequestsTest, ParametersOutOfRange) {
  const v1::GenerateRequest good = GreedyRequest({1, 2, 3}, 4);
  v1::GenerateRequest request = good;
  request.set_max_tokens(0);
  request.set_min_tokens(1);
  ExpectInvalid(request, "min_tokens");
  request = good;
  request.mutable_sampling()->set_temperature(-1);
  ExpectInvalid(request, "temperature");
  request.mutable_sampling()->set_temperature(std::nanf(""));
  ExpectInvalid(request, "temperature");
  request = good;
  request.mutable_sampling()->set_top_p(0);
  ExpectInvalid(request, "top_p");
  request = good;
  request.mutable_sampling()->set_min_p(1.5f);
  ExpectInvalid(request, "min_p");
  request = good;
  request.mutable_sampling()->set_repetition_penalty(0);
  ExpectInvalid(request, "repetition_penalty");
  request = good;
  request.mutable_sampling()->set_presence_penalty(3);
  ExpectInvalid(request, "presence_penalty");
  request = good;
  request.mutable_sampling()->set_frequency_penalty(-3);
  ExpectInvalid(request, "frequency_penalty");
  request = good;
  request.set_request_id(std::string(129, 'x'));
  ExpectInvalid(request, "request_id");
  request = good;
  request.set_model("gpt-7");
  const Answer answer = Generate(*stub_, request, kPatience);
  EXPECT_TRUE(absl::IsNotFound(answer.status)) << answer.status;
}

TEST_F(RequestsTest, ACancelledCallEnds) {
  for (int i = 0; i < 20; ++i) {
    const Answer answer =
        Generate(*stub_, GreedyRequest({1, 2, 3}, kContext - 3), kPatience,
                 [&](const v1::GenerateResponse&, size_t tokens) {
                   return tokens <= static_cast<size_t>(i);
                 });
    EXPECT_TRUE(answer.status.ok() || absl::IsCancelled(answer.status))
        << answer.status;
  }
}

TEST_F(RequestsTest, ADeadlineEndsTheCall) {
  const Answer answer =
      Generate(*stub_, GreedyRequest({1, 2, 3}, 500), absl::Milliseconds(5));
  EXPECT_TRUE(absl::IsDeadlineExceeded(answer.status)) << answer.status;
}

}  // namespace
}  // namespace baton::test
