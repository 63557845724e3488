// A cluster answers what one engine in one process answers, token for token,
// whichever worker computes which part in chunks of whatever size.
#include <algorithm>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/integration/client.h"
#include "tests/integration/cluster.h"
#include "tests/integration/reference.h"
#include "tests/support/tiny_model.h"

namespace baton::test {
namespace {

class AnswersTest : public testing::Test {
 protected:
  void SetUp() override { UseModel({}); }

  void UseModel(const TinyModelOptions& options) {
    model_dir_ = scratch_.path() + "/model";
    ASSERT_TRUE(WriteTinyModel(model_dir_, options).ok());
    auto reference = Reference::Load(model_dir_);
    ASSERT_TRUE(reference.ok()) << reference.status();
    reference_ = *std::move(reference);
  }

  std::vector<TokenId> DrawPrompt(int length) {
    std::uniform_int_distribution<TokenId> token(
        0, reference_->model().vocab_size - 1);
    std::vector<TokenId> prompt(length);
    for (TokenId& id : prompt) id = token(random_);
    return prompt;
  }

  // A mix of lengths and ways to sample; every third is greedy.
  void ExpectManyAtOnceOverUnequalWorkers(int count);

  ScratchDir scratch_;
  std::string model_dir_;
  std::unique_ptr<Reference> reference_;
  std::mt19937_64 random_{20261121};
};

TEST_F(AnswersTest, OnePromptFromEndToEnd) {
  Cluster cluster(model_dir_);
  const absl::Status started = cluster.Start({});
  ASSERT_TRUE(started.ok()) << started;
  const auto stub = cluster.MakeStub();
  // A busy machine may keep a worker from answering pings for a second, which
  // takes it for lost, or its report from coming in time: then again.
  Answer answer;
  for (int round = 0; round < 10; ++round) {
    const absl::Status joined = cluster.AwaitJoined(1, 1);
    ASSERT_TRUE(joined.ok()) << joined;
    const v1::GenerateRequest request = GreedyRequest(DrawPrompt(50), 20);
    answer = Generate(*stub, request, kPatience);
    ASSERT_TRUE(answer.status.ok()) << answer.status;
    EXPECT_EQ(answer.tokens, reference_->Tokens(request));
    EXPECT_EQ(answer.responses_after_last, 0);
    if (answer.last.timing().retries() == 0 &&
        answer.last.timing().kv_transfer_bytes() > 0) {
      break;
    }
  }
  EXPECT_EQ(answer.last.finish_reason(), v1::FINISH_REASON_LENGTH);
  EXPECT_EQ(answer.last.usage().prompt_tokens(), 50u);
  EXPECT_EQ(answer.last.usage().output_tokens(), 20u);

  const v1::Timing& timing = answer.last.timing();
  EXPECT_EQ(timing.prefill_worker(), "prefill-0");
  EXPECT_EQ(timing.decode_worker(), "decode-0");
  EXPECT_EQ(timing.retries(), 0u);
  EXPECT_GT(timing.kv_transfer_bytes(), 0u);
  EXPECT_GT(timing.ttft_seconds(), 0);
  EXPECT_GE(timing.e2e_seconds(), timing.ttft_seconds());
  EXPECT_NEAR(timing.ttft_seconds(),
              timing.route_queue_seconds() + timing.prefill_queue_seconds() +
                  timing.prefill_seconds() +
                  timing.first_token_return_seconds(),
              0.001);
}

TEST_F(AnswersTest, TextIsTokenizedAndDetokenized) {
  Cluster cluster(model_dir_);
  const absl::Status started = cluster.Start({});
  ASSERT_TRUE(started.ok()) << started;
  const auto stub = cluster.MakeStub();
  v1::GenerateRequest as_text = GreedyRequest({}, 12);
  as_text.set_text("Baton");
  // The tiny model's tokens are the bytes, after its begin-of-text token.
  const v1::GenerateRequest as_tokens =
      GreedyRequest({kTinyModelBos, 'B', 'a', 't', 'o', 'n'}, 12);
  const Answer from_text = Generate(*stub, as_text, kPatience);
  const Answer from_tokens = Generate(*stub, as_tokens, kPatience);
  ASSERT_TRUE(from_text.status.ok()) << from_text.status;
  EXPECT_EQ(from_text.last.usage().prompt_tokens(), 6u);
  EXPECT_EQ(from_text.tokens, reference_->Tokens(as_tokens));
  EXPECT_EQ(from_text.tokens, from_tokens.tokens);
  EXPECT_EQ(from_text.text, from_tokens.text);
}

TEST_F(AnswersTest, OneTokenNeedsNoDecodeStep) {
  Cluster cluster(model_dir_);
  const absl::Status started = cluster.Start({});
  ASSERT_TRUE(started.ok()) << started;
  const auto stub = cluster.MakeStub();
  for (int length : {1, 16, 17, 511}) {
    const v1::GenerateRequest request = GreedyRequest(DrawPrompt(length), 1);
    const Answer answer = Generate(*stub, request, kPatience);
    ASSERT_TRUE(answer.status.ok()) << answer.status;
    EXPECT_EQ(answer.tokens, reference_->Tokens(request)) << length;
  }
}

TEST_F(AnswersTest, EndOfTextEndsTheAnswer) {
  Cluster cluster(model_dir_);
  const absl::Status started = cluster.Start({});
  ASSERT_TRUE(started.ok()) << started;
  const auto stub = cluster.MakeStub();
  // At this temperature every token is about as likely, so that about one
  // answer in ten has an end-of-text token within its tokens.
  int stopped = 0;
  for (uint64_t seed = 0; seed < 40; ++seed) {
    v1::GenerateRequest request = GreedyRequest(DrawPrompt(3), 60);
    request.mutable_sampling()->set_temperature(50);
    request.mutable_sampling()->set_seed(seed);
    request.set_ignore_eos(false);
    const Answer answer = Generate(*stub, request, kPatience);
    ASSERT_TRUE(answer.status.ok()) << answer.status;
    EXPECT_EQ(answer.tokens, reference_->Tokens(request)) << seed;
    if (answer.last.finish_reason() == v1::FINISH_REASON_STOP) {
      ++stopped;
      EXPECT_EQ(answer.tokens.back(), kTinyModelEos);
    }
  }
  EXPECT_GT(stopped, 0);
}

// What comes with each token, too, whether the prefill worker samples it or the
// decode worker.
TEST_F(AnswersTest, LogprobsBiasAndLeastLength) {
  Cluster cluster(model_dir_);
  const absl::Status started = cluster.Start({});
  ASSERT_TRUE(started.ok()) << started;
  const auto stub = cluster.MakeStub();
  int held_off = 0;
  for (uint64_t seed = 0; seed < 12; ++seed) {
    v1::GenerateRequest request = GreedyRequest(DrawPrompt(20), 16);
    v1::SamplingParams& sampling = *request.mutable_sampling();
    sampling.set_seed(seed);
    if (seed % 2 == 1) sampling.set_temperature(1.5f);
    // What would come first, may not come before the ninth token.
    const std::vector<TokenId> free = reference_->Tokens(request);
    for (int i = 0; i < 3; ++i) request.add_stop_token_ids(free[i]);
    request.set_min_tokens(8);
    (*sampling.mutable_logit_bias())[free[4]] = 1.5f;
    (*sampling.mutable_logit_bias())[free[5]] = -100.0f;
    // What else may come, of a third of them: half of the vocabulary.
    for (int i = 0; seed % 3 == 2 && i < reference_->model().vocab_size; ++i) {
      if (i % 4 < 2) sampling.add_allowed_token_ids(i);
    }
    request.set_top_logprobs(static_cast<uint32_t>(seed) % 4 * 5);
    std::vector<v1::TokenLogprobs> logprobs;
    const Answer answer =
        Generate(*stub, request, kPatience,
                 [&](const v1::GenerateResponse& response, size_t) {
                   logprobs.insert(logprobs.end(), response.logprobs().begin(),
                                   response.logprobs().end());
                   return true;
                 });
    ASSERT_TRUE(answer.status.ok()) << answer.status;
    const auto expected = reference_->Sampled(request);
    ASSERT_EQ(answer.tokens.size(), expected.size()) << seed;
    ASSERT_EQ(logprobs.size(), expected.size()) << seed;
    EXPECT_GE(answer.tokens.size(), 8u);
    held_off += answer.tokens.size() > 8;
    for (size_t i = 0; i < expected.size(); ++i) {
      EXPECT_EQ(answer.tokens[i], expected[i].token) << seed << ": " << i;
      EXPECT_EQ(static_cast<TokenId>(logprobs[i].chosen().id()),
                expected[i].token);
      EXPECT_EQ(logprobs[i].chosen().logprob(), expected[i].logprob);
      std::vector<scheduling::TokenLogprob> top;
      for (const v1::TokenLogprob& t : logprobs[i].top()) {
        top.push_back({static_cast<TokenId>(t.id()), t.logprob()});
      }
      EXPECT_EQ(top, expected[i].top) << seed << ": " << i;
    }
  }
  EXPECT_GT(held_off, 0);
}

void AnswersTest::ExpectManyAtOnceOverUnequalWorkers(int count) {
  std::vector<v1::GenerateRequest> requests;
  std::uniform_int_distribution<int> prompt_length(1, 300);
  std::uniform_int_distribution<int> output_length(1, 80);
  for (int i = 0; i < count; ++i) {
    v1::GenerateRequest request = GreedyRequest(
        DrawPrompt(prompt_length(random_)), output_length(random_));
    v1::SamplingParams& sampling = *request.mutable_sampling();
    if (i % 3 != 0) {
      sampling.set_temperature(1.5f);
      sampling.set_seed(random_());
    }
    if (i % 3 == 2) {
      sampling.set_top_k(50);
      sampling.set_top_p(0.9f);
      sampling.set_min_p(0.01f);
      sampling.set_repetition_penalty(1.2f);
      sampling.set_presence_penalty(0.5f);
      sampling.set_frequency_penalty(0.25f);
    }
    if (i % 4 == 3) {
      (*sampling.mutable_logit_bias())[i] = 2.0f;
      (*sampling.mutable_logit_bias())[i + 1] = -100.0f;
      request.add_stop_token_ids(i + 2);
      request.set_min_tokens(request.max_tokens() / 2);
      request.set_top_logprobs(20);
    }
    if (i % 5 == 2) request.set_prompt_logprobs(i % 4 * 3);
    // Of prompts that caches have the beginning of, too.
    if (i % 10 == 7) {
      v1::TokenIds longer = requests[i - 5].token_ids();
      longer.MergeFrom(request.token_ids());
      longer.mutable_ids()->Truncate(std::min(400, longer.ids_size()));
      *request.mutable_token_ids() = longer;
    }
    requests.push_back(std::move(request));
  }

  Cluster cluster(model_dir_);
  ClusterShape shape;
  shape.prefill = {
      {"--token-budget", "512", "--threads", "1"},
      {"--token-budget", "37", "--threads", "2", "--block-size", "64"}};
  shape.decode = {
      {"--threads", "1"},
      {"--threads", "2", "--max-sequences", "20", "--block-size", "32"}};
  const absl::Status started = cluster.Start(shape);
  ASSERT_TRUE(started.ok()) << started;
  const auto stub = cluster.MakeStub();
  std::vector<Answer> answers(count);
  std::vector<std::thread> clients;
  for (int i = 0; i < count; ++i) {
    clients.emplace_back(
        [&, i] { answers[i] = Generate(*stub, requests[i], 2 * kPatience); });
  }
  for (std::thread& client : clients) client.join();

  std::set<std::string> workers;
  for (int i = 0; i < count; ++i) {
    ASSERT_TRUE(answers[i].status.ok()) << i << ": " << answers[i].status;
    EXPECT_EQ(answers[i].tokens, reference_->Tokens(requests[i])) << i;
    EXPECT_EQ(answers[i].prompt_logprobs,
              reference_->PromptLogprobs(requests[i]))
        << i;
    workers.insert(answers[i].last.timing().prefill_worker());
    workers.insert(answers[i].last.timing().decode_worker());
  }
  workers.erase("");
  EXPECT_EQ(workers.size(), 4u) << "every worker had a part";
}

TEST_F(AnswersTest, ManyAtOnceOverUnequalWorkers) {
  ExpectManyAtOnceOverUnequalWorkers(64);
}

// Whose way through a layer depends on nobody beside them, either.
TEST_F(AnswersTest, ManyAtOnceThroughMixturesOfExperts) {
  TinyModelOptions options;
  options.architecture = "Glm4MoeForCausalLM";
  options.experts = 12;
  options.experts_per_token = 3;
  options.first_layer_dense = true;
  options.layers = 3;
  UseModel(options);
  ExpectManyAtOnceOverUnequalWorkers(48);
}

// Of whose KV there are keys alone.
TEST_F(AnswersTest, ManyAtOnceWithLatentAttention) {
  TinyModelOptions options;
  options.architecture = "DeepseekV3ForCausalLM";
  options.experts = 9;
  options.experts_per_token = 3;
  options.first_layer_dense = true;
  options.layers = 3;
  UseModel(options);
  ExpectManyAtOnceOverUnequalWorkers(48);
}

}  // namespace
}  // namespace baton::test
