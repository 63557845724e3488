// Log-probabilities of a prompt's own tokens at the router: who is asked for
// them, that each comes once and in order, through as many attempts as it
// takes.
#include <cstdint>
#include <memory>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "scheduling/request.h"
#include "tests/router/router_fixture.h"
#include "tests/support/await_that.h"

namespace baton::router::router_prompt_logprobs_test {
namespace {

using test::AwaitThat;
using test::FakeWorker;
using testing::ElementsAre;
using testing::HasSubstr;

class PromptLogprobsTest : public TwoPairsFixture {
 protected:
  // A prompt of five tokens.
  static v1::GenerateRequest Scored(uint32_t top) {
    v1::GenerateRequest request = Request();
    request.mutable_token_ids()->clear_ids();
    for (const uint32_t id : {5, 6, 7, 8, 9}) {
      request.mutable_token_ids()->add_ids(id);
    }
    request.set_prompt_logprobs(top);
    return request;
  }

  // The next attempt, wherever it goes.
  struct Placed {
    FakeWorker* prefill = nullptr;
    FakeWorker* decode = nullptr;
    uint64_t attempt = 0;
    v1::SequenceSpec to_prefill;
    v1::SequenceSpec to_decode;
  };
  Placed Accept() {
    Placed placed;
    EXPECT_TRUE(AwaitThat([&] {
      for (FakeWorker* worker : p_) {
        if (worker->HasPrefill()) placed.prefill = worker;
      }
      for (FakeWorker* worker : d_) {
        if (worker->HasReserve()) placed.decode = worker;
      }
      return placed.prefill != nullptr && placed.decode != nullptr;
    }));
    const v1::Prefill message = placed.prefill->NextPrefill();
    placed.attempt = message.attempt();
    placed.to_prefill = message.sequence();
    const v1::Reserve reserve = placed.decode->NextReserve();
    EXPECT_EQ(reserve.attempt(), placed.attempt);
    placed.to_decode = reserve.sequence();
    placed.decode->SendGrant(placed.attempt);
    placed.prefill->NextGrant();
    return placed;
  }
  // Two tokens, of which the second ends the answer.
  static void Answer(const Placed& placed) {
    placed.prefill->SendToken(placed.attempt, 0, 40);
    placed.decode->SendToken(placed.attempt, 1, kEos, v1::FINISH_REASON_STOP);
    placed.prefill->SendOk(placed.attempt);
    placed.decode->SendOk(placed.attempt);
  }
};

// What a call read of its prompt, to the end.
std::vector<v1::TokenLogprobs> ReadPrompt(Call* call) {
  std::vector<v1::TokenLogprobs> all;
  bool answered = false;
  while (const auto response = call->Read()) {
    EXPECT_FALSE(answered && response->prompt_logprobs_size() > 0);
    answered |= response->token_ids_size() > 0;
    all.insert(all.end(), response->prompt_logprobs().begin(),
               response->prompt_logprobs().end());
  }
  return all;
}

std::vector<float> LogprobsOf(const std::vector<v1::TokenLogprobs>& tokens) {
  std::vector<float> logprobs;
  for (const v1::TokenLogprobs& token : tokens) {
    logprobs.push_back(token.chosen().logprob());
  }
  return logprobs;
}

TEST_F(PromptLogprobsTest, ComeInPiecesBeforeTheAnswer) {
  StartAndPairAll();
  const auto call = Generate(Scored(2));
  const Placed placed = Accept();
  // Only who computes the prompt is asked.
  EXPECT_EQ(placed.to_prefill.prompt_logprobs().first(), 1u);
  EXPECT_EQ(placed.to_prefill.prompt_logprobs().top(), 2u);
  EXPECT_FALSE(placed.to_decode.has_prompt_logprobs());
  placed.prefill->SendPromptLogprobs(placed.attempt, 1, {-1.0f, -2.0f}, 2);
  // They come at once.
  const auto first = call->Read();
  ASSERT_TRUE(first.has_value());
  ASSERT_EQ(first->prompt_logprobs_size(), 2);
  EXPECT_EQ(first->token_ids_size(), 0);
  const v1::TokenLogprobs& second_token = first->prompt_logprobs(0);
  EXPECT_EQ(second_token.chosen().id(), 6u);
  EXPECT_EQ(second_token.chosen().logprob(), -1.0f);
  EXPECT_FALSE(second_token.chosen().token().empty());
  ASSERT_EQ(second_token.top_size(), 2);
  EXPECT_EQ(second_token.top(1).id(), 101u);
  EXPECT_EQ(second_token.top(1).logprob(), -0.5f);
  EXPECT_EQ(first->prompt_logprobs(1).top(0).id(), 102u);
  // The decode worker's token overtakes the rest.
  placed.decode->SendToken(placed.attempt, 1, kEos, v1::FINISH_REASON_STOP);
  placed.prefill->SendPromptLogprobs(placed.attempt, 3, {-3.0f, -4.0f}, 2);
  placed.prefill->SendToken(placed.attempt, 0, 40);
  placed.prefill->SendOk(placed.attempt);
  placed.decode->SendOk(placed.attempt);
  EXPECT_THAT(LogprobsOf(ReadPrompt(call.get())), ElementsAre(-3.0f, -4.0f));
  EXPECT_TRUE(call->Finish().ok());
  EXPECT_THAT(call->tokens(), ElementsAre(40, kEos));
}

TEST_F(PromptLogprobsTest, NobodyIsAskedForWhatIsNotWanted) {
  StartAndPairAll();
  for (const bool wanted : {false, true}) {
    v1::GenerateRequest request = Scored(0);
    // One token has none.
    if (wanted) request.mutable_token_ids()->mutable_ids()->Truncate(1);
    if (!wanted) request.clear_prompt_logprobs();
    const auto call = Generate(request);
    const Placed placed = Accept();
    EXPECT_FALSE(placed.to_prefill.has_prompt_logprobs());
    Answer(placed);
    EXPECT_TRUE(ReadPrompt(call.get()).empty());
    EXPECT_TRUE(call->Finish().ok());
  }
}

TEST_F(PromptLogprobsTest, TheNextAttemptGoesOnWithThem) {
  StartAndPairAll();
  const auto call = Generate(Scored(0));
  const Placed first = Accept();
  first.prefill->SendPromptLogprobs(first.attempt, 1, {-1.0f, -2.0f});
  ASSERT_TRUE(call->Read().has_value());
  first.prefill->Die();
  const Placed second = Accept();
  EXPECT_NE(second.prefill, first.prefill);
  EXPECT_EQ(second.to_prefill.prompt_logprobs().first(), 3u);
  // One that tells more than it was asked for.
  second.prefill->SendPromptLogprobs(second.attempt, 2, {-20.0f, -3.0f, -4.0f});
  second.prefill->SendToken(second.attempt, 0, kEos, v1::FINISH_REASON_STOP);
  EXPECT_THAT(LogprobsOf(ReadPrompt(call.get())), ElementsAre(-3.0f, -4.0f));
  EXPECT_TRUE(call->Finish().ok());
}

TEST_F(PromptLogprobsTest, AreNotAskedForAgainOnceAllAreThere) {
  StartAndPairAll();
  const auto call = Generate(Scored(0));
  const Placed first = Accept();
  first.prefill->SendPromptLogprobs(first.attempt, 1,
                                    {-1.0f, -2.0f, -3.0f, -4.0f});
  first.prefill->SendToken(first.attempt, 0, 40);
  ASSERT_TRUE(call->ReadTokens(1));
  first.decode->Die();
  const Placed second = Accept();
  EXPECT_FALSE(second.to_prefill.has_prompt_logprobs());
  EXPECT_FALSE(second.to_decode.has_prompt_logprobs());
  second.prefill->SendToken(second.attempt, 1, kEos, v1::FINISH_REASON_STOP);
  EXPECT_TRUE(call->Finish().ok());
}

TEST_F(PromptLogprobsTest, WhoKeepsThemBackIsNotBelieved) {
  StartAndPairAll();
  const auto call = Generate(Scored(0));
  const Placed first = Accept();
  first.prefill->SendPromptLogprobs(first.attempt, 1, {-1.0f, -2.0f, -3.0f});
  first.prefill->SendToken(first.attempt, 0, 40);
  EXPECT_THAT(first.prefill->NextCancel().reason(),
              HasSubstr("before all log-probabilities of the prompt"));
  const Placed second = Accept();
  EXPECT_EQ(second.to_prefill.prompt_logprobs().first(), 4u);
  EXPECT_EQ(second.to_prefill.tokens_size(), 5);
  second.prefill->SendPromptLogprobs(second.attempt, 4, {-4.0f});
  second.prefill->SendToken(second.attempt, 0, kEos, v1::FINISH_REASON_STOP);
  EXPECT_EQ(ReadPrompt(call.get()).size(), 4u);
  EXPECT_TRUE(call->Finish().ok());
  EXPECT_THAT(call->tokens(), ElementsAre(kEos));
}

TEST_F(PromptLogprobsTest, ThoseThatCannotBeEndTheAttempt) {
  StartAndPairAll();
  struct Bad {
    uint32_t first;
    std::vector<float> logprobs;
    uint32_t top;
  };
  for (const Bad& bad : {Bad{2, {-1.0f}, 0},  // one is left out
                         Bad{0, {-1.0f}, 0},  // the first has none
                         Bad{5, {-1.0f}, 0},  // behind the prompt
                         Bad{1, {-1, -1, -1, -1, -1}, 0}, Bad{1, {-1.0f}, 21},
                         Bad{0xffffffffu, {-1.0f}, 0}}) {
    const auto call = Generate(Scored(0));
    const Placed first = Accept();
    first.prefill->SendPromptLogprobs(first.attempt, bad.first, bad.logprobs,
                                      bad.top);
    EXPECT_THAT(first.prefill->NextCancel().reason(),
                HasSubstr("log-probabilities of the prompt from token"));
    EXPECT_EQ(first.decode->NextCancel().attempt(), first.attempt);
    const Placed second = Accept();
    EXPECT_EQ(second.to_prefill.prompt_logprobs().first(), 1u);
    call->Cancel();
    EXPECT_EQ(second.prefill->NextCancel().attempt(), second.attempt);
    EXPECT_EQ(second.decode->NextCancel().attempt(), second.attempt);
  }
}

TEST_F(PromptLogprobsTest, OthersThanWhoComputesThePromptAreNotHeard) {
  StartAndPairAll();
  const auto call = Generate(Scored(0));
  const Placed placed = Accept();
  placed.decode->SendPromptLogprobs(placed.attempt, 1,
                                    {-9.0f, -9.0f, -9.0f, -9.0f});
  // Until that was read.
  placed.decode->SendToken(placed.attempt, 1, kEos, v1::FINISH_REASON_STOP);
  placed.prefill->SendPromptLogprobs(placed.attempt, 1,
                                     {-1.0f, -2.0f, -3.0f, -4.0f});
  placed.prefill->SendToken(placed.attempt, 0, 40);
  EXPECT_THAT(LogprobsOf(ReadPrompt(call.get())),
              ElementsAre(-1.0f, -2.0f, -3.0f, -4.0f));
}

TEST_F(PromptLogprobsTest, LongPromptsComeInResponsesThatClientsTake) {
  StartAndPairAll();
  v1::GenerateRequest request = Scored(20);
  for (int i = 0; i < 495; ++i) request.mutable_token_ids()->add_ids(11);
  const auto call = Generate(request);
  const Placed placed = Accept();
  placed.prefill->SendPromptLogprobs(placed.attempt, 1,
                                     std::vector<float>(499, -1.0f), 20);
  const auto first = call->Read();
  ASSERT_TRUE(first.has_value());
  EXPECT_EQ(first->prompt_logprobs_size(), 4096 / 21);
  Answer(placed);
  EXPECT_EQ(ReadPrompt(call.get()).size(), 499u - 4096 / 21);
}

}  // namespace
}  // namespace baton::router::router_prompt_logprobs_test
