// The way of a request through the router, worker by worker and step by step.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/router/router_fixture.h"
#include "tests/support/await_that.h"

namespace baton::router {
namespace {

using test::FakeWorker;
using testing::ElementsAre;
using testing::HasSubstr;

class OnePairTest : public RouterTest {
 protected:
  OnePairTest() : prefill_(AddPrefill("p0")), decode_(AddDecode("d0")) {
    options_.flow.settle_wait = kReportsCome;
  }
  FakeWorker* const prefill_;
  FakeWorker* const decode_;
};

TEST_F(OnePairTest, TokensComeInOrderAndTheStagesAddUp) {
  StartRouter();
  v1::GenerateRequest request = Request();
  request.set_request_id("my-request");
  request.mutable_sampling()->set_temperature(0.5f);
  request.mutable_sampling()->set_seed(42);
  const auto call = Generate(request);

  // Both are asked at the same time: neither waits for an answer.
  const v1::Reserve reserve = decode_->NextReserve();
  const v1::Prefill prefill = prefill_->NextPrefill();
  const uint64_t attempt = reserve.attempt();
  EXPECT_EQ(prefill.attempt(), attempt);
  EXPECT_FALSE(reserve.local_prefill());
  EXPECT_EQ(reserve.prefill_incarnation(), prefill_->hello().incarnation());
  const v1::SequenceSpec& sequence = prefill.sequence();
  EXPECT_EQ(sequence.SerializeAsString(),
            reserve.sequence().SerializeAsString());
  EXPECT_EQ(sequence.request_id(), "my-request");
  EXPECT_THAT(sequence.tokens(), ElementsAre(5, 6, 7));
  EXPECT_EQ(sequence.prompt_length(), 3u);
  EXPECT_EQ(sequence.max_output_tokens(), 8u);
  EXPECT_THAT(sequence.stop_token_ids(), ElementsAre(kEos));
  EXPECT_FLOAT_EQ(sequence.sampling().temperature(), 0.5f);
  EXPECT_FLOAT_EQ(sequence.sampling().top_p(), 0.9f);  // the model's default
  EXPECT_EQ(sequence.sampling().seed(), 42u);
  EXPECT_GT(sequence.deadline_ms(), 0u);

  // The first token does not wait for the grant; the second one, from the other
  // worker, may overtake it.
  decode_->SendToken(attempt, 1, 11);
  v1::PromptReport prompt;
  prompt.set_queue_seconds(1e-6);
  prompt.set_prefill_seconds(2e-6);
  prompt.set_cached_tokens(2);
  prefill_->SendFirstToken(attempt, 10, prompt);
  ASSERT_TRUE(call->ReadTokens(2));
  decode_->SendGrant(attempt);
  const v1::Grant grant = prefill_->NextGrant();
  EXPECT_EQ(grant.attempt(), attempt);
  EXPECT_EQ(grant.transfer_id(), 7000 + attempt);
  EXPECT_EQ(grant.data_address(), "127.0.0.1:9");

  v1::Outcome prefilled;
  prefilled.set_attempt(attempt);
  prefilled.set_ok(true);
  prefilled.set_kv_transfer_seconds(0.25);
  prefilled.set_kv_transfer_exposed_seconds(0.125);
  prefilled.set_kv_transfer_bytes(4096);
  prefill_->SendOutcome(prefilled);
  decode_->SendToken(attempt, 2, 12);
  decode_->SendToken(attempt, 1, 11);  // again
  decode_->SendToken(attempt, 3, kEos, v1::FINISH_REASON_STOP);
  v1::Outcome decoded;
  decoded.set_attempt(attempt);
  decoded.set_ok(true);
  decoded.set_decode_queue_seconds(0.5);
  decoded.set_first_step_seconds(0.0625);
  decode_->SendOutcome(decoded);

  const grpc::Status status = call->Finish();
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_THAT(call->tokens(), ElementsAre(10, 11, 12, kEos));
  const v1::GenerateResponse& last = call->last();
  EXPECT_EQ(last.request_id(), "my-request");
  EXPECT_EQ(last.finish_reason(), v1::FINISH_REASON_STOP);
  EXPECT_EQ(last.usage().prompt_tokens(), 3u);
  EXPECT_EQ(last.usage().output_tokens(), 4u);
  EXPECT_EQ(last.usage().cached_prompt_tokens(), 2u);
  const v1::Timing& timing = last.timing();
  EXPECT_GT(timing.ttft_seconds(), 0);
  EXPECT_DOUBLE_EQ(timing.prefill_queue_seconds(), 1e-6);
  EXPECT_DOUBLE_EQ(timing.prefill_seconds(), 2e-6);
  EXPECT_NEAR(timing.route_queue_seconds() + timing.prefill_queue_seconds() +
                  timing.prefill_seconds() +
                  timing.first_token_return_seconds(),
              timing.ttft_seconds(), 1e-9);
  EXPECT_GE(timing.e2e_seconds(), timing.ttft_seconds());
  EXPECT_EQ(timing.kv_transfer_seconds(), 0.25);
  EXPECT_EQ(timing.kv_transfer_exposed_seconds(), 0.125);
  EXPECT_EQ(timing.kv_transfer_bytes(), 4096u);
  EXPECT_EQ(timing.decode_queue_seconds(), 0.5);
  EXPECT_EQ(timing.first_step_seconds(), 0.0625);
  EXPECT_EQ(timing.prefill_worker(), "p0");
  EXPECT_EQ(timing.decode_worker(), "d0");
  EXPECT_EQ(timing.retries(), 0u);
  EXPECT_FALSE(decode_->HasCancel());
  EXPECT_FALSE(prefill_->HasCancel());
}

TEST_F(OnePairTest, TextInTextOut) {
  StartRouter();
  v1::GenerateRequest request = Request();
  request.set_text("Once upon a time");
  request.set_ignore_eos(true);
  const auto tokenizer = Tokenizer::Load(options_.model_dir);
  ASSERT_TRUE(tokenizer.ok());
  const std::vector<TokenId> prompt = *(*tokenizer)->Encode("Once upon a time");
  const std::vector<TokenId> answer =
      *(*tokenizer)
           ->Encode(" there was a little girl.", {.add_special_tokens = false});

  const auto call = Generate(request);
  const v1::Prefill prefill = prefill_->NextPrefill();
  const uint64_t attempt = prefill.attempt();
  EXPECT_THAT(prefill.sequence().tokens(), testing::ElementsAreArray(prompt));
  EXPECT_THAT(prefill.sequence().stop_token_ids(), testing::IsEmpty());
  ASSERT_LE(answer.size(), 7u);
  prefill_->SendToken(attempt, 0, answer[0]);
  for (size_t i = 1; i < answer.size(); ++i) {
    decode_->SendToken(attempt, i, answer[i]);
  }
  decode_->SendToken(attempt, answer.size(), kEos, v1::FINISH_REASON_LENGTH);
  decode_->SendOk(attempt);
  prefill_->SendOk(attempt);
  EXPECT_TRUE(call->Finish().ok());
  // The end-of-text token is an id, and no text.
  EXPECT_EQ(call->text(), " there was a little girl.");
  EXPECT_EQ(call->tokens().size(), answer.size() + 1);
  EXPECT_EQ(call->last().finish_reason(), v1::FINISH_REASON_LENGTH);
}

TEST_F(OnePairTest, FirstTokenMayBeTheLast) {
  StartRouter();
  const auto call = Generate();
  const uint64_t attempt = prefill_->NextPrefill().attempt();
  prefill_->SendToken(attempt, 0, kEos, v1::FINISH_REASON_STOP);
  // Nothing will be handed over: the reservation ends at once.
  EXPECT_EQ(decode_->NextCancel().attempt(), attempt);
  prefill_->SendOk(attempt);
  EXPECT_TRUE(call->Finish().ok());
  EXPECT_THAT(call->tokens(), ElementsAre(kEos));
  EXPECT_EQ(call->last().finish_reason(), v1::FINISH_REASON_STOP);
}

TEST_F(OnePairTest, MissingReportsDoNotHoldTheAnswerUp) {
  options_.flow.settle_wait = absl::Milliseconds(100);
  StartRouter();
  const auto call = Generate();
  const uint64_t attempt = prefill_->NextPrefill().attempt();
  prefill_->SendToken(attempt, 0, kEos, v1::FINISH_REASON_STOP);
  EXPECT_TRUE(call->Finish().ok());
  EXPECT_EQ(prefill_->NextCancel().attempt(), attempt);
}

TEST_F(OnePairTest, RefusalForGoodFailsTheRequest) {
  StartRouter();
  const auto call = Generate();
  const uint64_t attempt = decode_->NextReserve().attempt();
  decode_->SendRefusal(attempt, v1::REFUSAL_REASON_TOO_LARGE, 0);
  const grpc::Status status = call->Finish();
  EXPECT_EQ(status.error_code(), grpc::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("refused by the test"));
  EXPECT_EQ(prefill_->NextCancel().attempt(), attempt);
}

TEST_F(OnePairTest, BusyWorkerIsAskedAgainWhenThereIsNoOther) {
  StartRouter();
  const auto call = Generate();
  const uint64_t first = decode_->NextReserve().attempt();
  decode_->SendRefusal(first, v1::REFUSAL_REASON_NO_BLOCKS, 30);
  EXPECT_EQ(prefill_->NextCancel().attempt(), first);
  const uint64_t second = decode_->NextReserve().attempt();
  EXPECT_GT(second, first);
  EXPECT_EQ(prefill_->NextPrefill().attempt(), first);
  EXPECT_EQ(prefill_->NextPrefill().attempt(), second);
  // The first attempt's late words change nothing.
  prefill_->SendToken(first, 0, 99);
  prefill_->SendFailure(first, "late", true);
  prefill_->SendToken(second, 0, kEos, v1::FINISH_REASON_STOP);
  prefill_->SendOk(second);
  EXPECT_TRUE(call->Finish().ok());
  EXPECT_THAT(call->tokens(), ElementsAre(kEos));
  EXPECT_EQ(call->last().timing().retries(), 1u);
}

TEST_F(OnePairTest, FailuresAreRetriedUpToTheBound) {
  options_.flow.max_attempts = 2;
  StartRouter();
  const auto call = Generate();
  const uint64_t first = decode_->NextReserve().attempt();
  decode_->SendFailure(first, "the transfer is torn", true);
  EXPECT_EQ(prefill_->NextCancel().attempt(), first);
  const uint64_t second = decode_->NextReserve().attempt();
  decode_->SendFailure(second, "torn again", true);
  const grpc::Status status = call->Finish();
  EXPECT_EQ(status.error_code(), grpc::UNAVAILABLE);
  EXPECT_THAT(status.error_message(), HasSubstr("2 failed attempts"));
  EXPECT_THAT(status.error_message(), HasSubstr("d0: torn again"));
}

TEST_F(OnePairTest, FailureThatNobodyCanMendIsFinal) {
  StartRouter();
  const auto call = Generate();
  const uint64_t attempt = prefill_->NextPrefill().attempt();
  prefill_->SendFailure(attempt, "the logits are not finite", false);
  const grpc::Status status = call->Finish();
  EXPECT_EQ(status.error_code(), grpc::INTERNAL);
  EXPECT_THAT(status.error_message(), HasSubstr("logits are not finite"));
  EXPECT_EQ(decode_->NextCancel().attempt(), attempt);
}

TEST_F(OnePairTest, TokenThatIsNoneOfTheModelsFailsTheAttempt) {
  options_.flow.max_attempts = 1;
  StartRouter();
  const auto call = Generate();
  const uint64_t attempt = prefill_->NextPrefill().attempt();
  prefill_->SendToken(attempt, 0, 2048);
  EXPECT_EQ(call->Finish().error_code(), grpc::UNAVAILABLE);
  EXPECT_EQ(decode_->NextCancel().attempt(), attempt);
  EXPECT_EQ(prefill_->NextCancel().attempt(), attempt);
}

TEST_F(OnePairTest, ClientCancelReachesBothLegs) {
  StartRouter();
  const auto call = Generate();
  const uint64_t attempt = decode_->NextReserve().attempt();
  EXPECT_EQ(prefill_->NextPrefill().attempt(), attempt);
  decode_->SendGrant(attempt);
  prefill_->NextGrant();
  call->Cancel();
  EXPECT_EQ(call->Finish().error_code(), grpc::CANCELLED);
  EXPECT_EQ(prefill_->NextCancel().attempt(), attempt);
  EXPECT_EQ(decode_->NextCancel().attempt(), attempt);
}

TEST_F(OnePairTest, ClientDeadlineEndsBothLegs) {
  StartRouter();
  AwaitServing(true);
  const auto call = Generate(Request(), absl::Seconds(3));
  const v1::Reserve reserve = decode_->NextReserve();
  // gRPC says it in about two digits.
  EXPECT_LE(reserve.sequence().deadline_ms(), 3300u);
  EXPECT_EQ(call->Finish().error_code(), grpc::DEADLINE_EXCEEDED);
  EXPECT_EQ(prefill_->NextCancel().attempt(), reserve.attempt());
  EXPECT_EQ(decode_->NextCancel().attempt(), reserve.attempt());
}

TEST_F(OnePairTest, RouterTimeoutEndsTheRequest) {
  options_.door.request_timeout = absl::Milliseconds(200);
  StartRouter();
  const auto call = Generate();
  EXPECT_EQ(call->Finish().error_code(), grpc::DEADLINE_EXCEEDED);
}

TEST_F(OnePairTest, MetricsTellTheStory) {
  ServeMetrics();
  StartRouter();
  {
    const auto call = Generate();
    const uint64_t attempt = prefill_->NextPrefill().attempt();
    prefill_->SendToken(attempt, 0, 10);
    decode_->SendToken(attempt, 1, kEos, v1::FINISH_REASON_STOP);
    prefill_->SendOk(attempt);
    decode_->SendOk(attempt);
    ASSERT_TRUE(call->Finish().ok());
  }
  {
    v1::GenerateRequest bad = Request();
    bad.set_top_logprobs(21);
    EXPECT_EQ(Generate(bad)->Finish().error_code(), grpc::INVALID_ARGUMENT);
  }
  const std::string labels =
      "{model_name=\"stories\",role=\"router\",worker=\"router\"";
  EXPECT_EQ(Metric("baton_prompt_tokens_total" + labels), 3);
  EXPECT_EQ(Metric("baton_generation_tokens_total" + labels), 2);
  EXPECT_EQ(Metric("baton_request_success_total" + labels +
                   ",finished_reason=\"stop\""),
            1);
  EXPECT_EQ(Metric("baton_time_to_first_token_seconds_count" + labels), 1);
  EXPECT_EQ(Metric("baton_e2e_request_latency_seconds_count" + labels), 1);
  EXPECT_EQ(Metric("baton_admission_total" + labels +
                   ",outcome=\"rejected\",reason=\"invalid\""),
            1);
  EXPECT_EQ(Metric("baton_disagg_decision_total" + labels +
                   ",decision=\"prefill-decode\""),
            1);
  EXPECT_TRUE(test::AwaitThat(
      [&] { return Metric("baton_num_requests_running" + labels) == 0; }));
  EXPECT_EQ(Metric("baton_worker_usable" + labels), 1);
}

class DecodeAloneTest : public RouterTest {
 protected:
  DecodeAloneTest() : decode_(AddDecode("d0")) {
    options_.flow.settle_wait = kReportsCome;
  }
  FakeWorker* const decode_;
};

TEST_F(DecodeAloneTest, PrefillsLocallyWhenNoPrefillWorkerWasNamed) {
  StartRouter();
  const auto call = Generate();
  const v1::Reserve reserve = decode_->NextReserve();
  EXPECT_TRUE(reserve.local_prefill());
  EXPECT_EQ(reserve.prefill_incarnation(), 0u);
  const uint64_t attempt = reserve.attempt();
  decode_->SendGrant(attempt);
  v1::PromptReport prompt;
  prompt.set_prefill_seconds(1e-6);
  decode_->SendFirstToken(attempt, 10, prompt);
  ASSERT_TRUE(call->ReadTokens(1));
  decode_->SendToken(attempt, 1, kEos, v1::FINISH_REASON_STOP);
  decode_->SendOk(attempt);
  EXPECT_TRUE(call->Finish().ok());
  EXPECT_THAT(call->tokens(), ElementsAre(10, kEos));
  EXPECT_EQ(call->last().timing().prefill_worker(), "");
  EXPECT_DOUBLE_EQ(call->last().timing().prefill_seconds(), 1e-6);
}

}  // namespace
}  // namespace baton::router
