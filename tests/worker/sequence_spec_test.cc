#include "worker/sequence_spec.h"

#include <cmath>
#include <functional>
#include <memory>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace baton::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int32_t kVocab = 100;

constexpr char kTraceparent[] =
    "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

void AddBias(v1::SequenceSpec* spec, uint32_t token, float bias) {
  v1::LogitBias* added = spec->mutable_sampling()->add_logit_bias();
  added->set_token(token);
  added->set_bias(bias);
}

v1::SequenceSpec Good() {
  v1::SequenceSpec spec;
  for (uint32_t token : {5u, 6u, 7u, 8u}) spec.add_tokens(token);
  spec.set_prompt_length(3);
  spec.set_max_output_tokens(10);
  spec.add_stop_token_ids(99);
  spec.mutable_sampling()->set_temperature(0.5f);
  spec.mutable_sampling()->set_top_p(0.9f);
  spec.mutable_sampling()->set_repetition_penalty(1.0f);
  spec.mutable_sampling()->set_seed(1234);
  AddBias(&spec, 50, 2.5f);
  AddBias(&spec, 7, -100.0f);
  for (const uint32_t token : {99u, 0u, 0u, 50u}) {
    spec.mutable_sampling()->add_allowed_token_ids(token);
  }
  spec.set_min_output_tokens(4);
  spec.set_top_logprobs(20);
  spec.mutable_prompt_logprobs()->set_first(2);
  spec.mutable_prompt_logprobs()->set_top(20);
  spec.set_traceparent(kTraceparent);
  spec.mutable_target()->set_ttft_ms(1500);
  spec.mutable_target()->set_itl_ms(50);
  spec.set_request_class(v1::REQUEST_CLASS_BATCH);
  spec.set_priority(-100);
  spec.set_cache_salt(std::string(512, 's'));
  return spec;
}

// By identity, whatever it is called.
TEST(MakeSequenceTest, FindsTheAdapter) {
  const std::vector<engine::AdapterInfo> adapters = {
      {.name = "b", .identity = "A"}, {.name = "a", .identity = "B"}};
  const auto adapter_of = [&](const std::string& identity) {
    v1::SequenceSpec spec = Good();
    spec.set_adapter(identity);
    const auto sequence = MakeSequence(SequenceId{3}, spec, kVocab, adapters);
    EXPECT_TRUE(sequence.ok()) << sequence.status();
    scheduling::StepPlan plan;
    (*sequence)->AppendTo(&plan, 1);
    return plan.sequences[0].adapter;
  };
  EXPECT_EQ(adapter_of(""), scheduling::kNoAdapter);
  EXPECT_EQ(adapter_of("A"), 0);
  EXPECT_EQ(adapter_of("B"), 1);
  v1::SequenceSpec spec = Good();
  spec.set_adapter("C\n");
  const absl::Status status =
      MakeSequence(SequenceId{3}, spec, kVocab, adapters).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(status.message(),
            "sequence.adapter is C\\n, which this worker does not have");
}

TEST(MakeSequenceTest, TakesEveryField) {
  const auto sequence = MakeSequence(SequenceId{3}, Good(), kVocab);
  ASSERT_TRUE(sequence.ok()) << sequence.status();
  EXPECT_EQ((*sequence)->num_tokens(), 4);
  EXPECT_EQ((*sequence)->cache_salt(), std::string(512, 's'));
  EXPECT_EQ((*sequence)->prompt_length(), 3);
  EXPECT_EQ((*sequence)->num_output(), 1);
  EXPECT_EQ((*sequence)->stop().max_output_tokens, 10);
  EXPECT_EQ((*sequence)->stop().stop_token_ids, std::vector<TokenId>{99});
  EXPECT_EQ((*sequence)->sampling().seed, 1234u);
  EXPECT_FLOAT_EQ((*sequence)->sampling().top_p, 0.9f);
  EXPECT_THAT((*sequence)->sampling().logit_bias,
              ElementsAre(scheduling::LogitBias{7, -100.0f},
                          scheduling::LogitBias{50, 2.5f}));
  ASSERT_NE((*sequence)->sampling().allowed, nullptr);
  EXPECT_EQ((*sequence)->sampling().allowed->vocab_size(), kVocab);
  EXPECT_THAT((*sequence)->sampling().allowed->Tokens(),
              ElementsAre(0, 50, 99));
  EXPECT_EQ((*sequence)->stop().min_output_tokens, 4);
  EXPECT_EQ((*sequence)->top_logprobs(), 20);
  EXPECT_EQ((*sequence)->MaxCached(), 1);
  const scheduling::Urgency& urgency = (*sequence)->urgency();
  EXPECT_EQ(urgency.request_class, scheduling::RequestClass::kBatch);
  EXPECT_EQ(urgency.priority, -100);
  EXPECT_DOUBLE_EQ(urgency.ttft_target_seconds, 1.5);
  EXPECT_DOUBLE_EQ(urgency.itl_target_seconds, 0.05);
}

TEST(MakeSequenceTest, NoneOfTheOptionsNeedsToBeThere) {
  v1::SequenceSpec spec = Good();
  spec.mutable_sampling()->clear_logit_bias();
  spec.mutable_sampling()->clear_allowed_token_ids();
  spec.clear_min_output_tokens();
  spec.clear_top_logprobs();
  spec.clear_prompt_logprobs();
  spec.clear_traceparent();
  spec.clear_target();
  spec.clear_request_class();
  spec.clear_priority();
  const auto sequence = MakeSequence(SequenceId{3}, spec, kVocab);
  ASSERT_TRUE(sequence.ok()) << sequence.status();
  EXPECT_TRUE((*sequence)->sampling().logit_bias.empty());
  EXPECT_EQ((*sequence)->sampling().allowed, nullptr);
  EXPECT_EQ((*sequence)->stop().min_output_tokens, 0);
  const scheduling::Urgency& urgency = (*sequence)->urgency();
  EXPECT_EQ(urgency.request_class, scheduling::RequestClass::kInteractive);
  EXPECT_EQ(urgency.priority, 0);
  EXPECT_EQ(urgency.ttft_target_seconds, 0);
  EXPECT_EQ(urgency.itl_target_seconds, 0);
  EXPECT_EQ((*sequence)->top_logprobs(), 0);
  EXPECT_EQ((*sequence)->MaxCached(), 3);
}

// Stop tokens may not leave a sequence without any token to sample.
TEST(MakeSequenceTest, SomeTokenCanAlwaysBeSampled) {
  v1::SequenceSpec spec = Good();
  for (uint32_t token = 1; token < 99; ++token) spec.add_stop_token_ids(token);
  EXPECT_TRUE(MakeSequence(SequenceId{3}, spec, kVocab).ok());  // 0 is left
  spec.add_stop_token_ids(0);
  const auto sequence = MakeSequence(SequenceId{3}, spec, kVocab);
  EXPECT_EQ(sequence.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(sequence.status().message()),
              HasSubstr("stop_token_ids has 100"));
  spec.clear_min_output_tokens();
  EXPECT_TRUE(MakeSequence(SequenceId{3}, spec, kVocab).ok());
}

struct BadCase {
  const char* field;
  void (*spoil)(v1::SequenceSpec*);
};

class BadSequenceTest : public ::testing::TestWithParam<BadCase> {};

TEST_P(BadSequenceTest, NamesTheField) {
  v1::SequenceSpec spec = Good();
  GetParam().spoil(&spec);
  const auto sequence = MakeSequence(SequenceId{3}, spec, kVocab);
  EXPECT_EQ(sequence.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(sequence.status().message()),
              HasSubstr(GetParam().field));
}

INSTANTIATE_TEST_SUITE_P(All, BadSequenceTest,
                         ::
                             testing::
                                 Values(BadCase{"prompt_length",
                                                [](v1::SequenceSpec* s) {
                                                  s->clear_tokens();
                                                }},
                                        BadCase{"tokens",
                                                [](v1::SequenceSpec* s) {
                                                  s->set_tokens(0, 100);
                                                }},
                                        BadCase{"tokens",
                                                [](v1::SequenceSpec* s) {
                                                  s->set_tokens(0, 0xFFFFFFFFu);
                                                }},
                                        BadCase{"prompt_length",
                                                [](v1::SequenceSpec* s) {
                                                  s->set_prompt_length(0);
                                                }},
                                        BadCase{"prompt_length",
                                                [](v1::SequenceSpec* s) {
                                                  s->set_prompt_length(5);
                                                }},
                                        BadCase{"max_output_tokens",
                                                [](v1::SequenceSpec* s) {
                                                  s->set_max_output_tokens(1);
                                                }},
                                        BadCase{"max_output_tokens",
                                                [](v1::SequenceSpec* s) {
                                                  s->set_max_output_tokens(
                                                      0xFFFFFFFFu);
                                                }},
                                        BadCase{"stop_token_ids",
                                                [](v1::SequenceSpec* s) {
                                                  s->set_stop_token_ids(0, 100);
                                                }},
                                        BadCase{
                                            "top_p",
                                            [](v1::SequenceSpec* s) {
                                              s->mutable_sampling()->set_top_p(
                                                  0);
                                            }},
                                        BadCase{"logit_bias has token 100",
                                                [](v1::SequenceSpec* s) {
                                                  AddBias(s, 100, 1);
                                                }},
                                        BadCase{
                                            "logit_bias has token 4294967295",
                                            [](v1::SequenceSpec* s) {
                                              AddBias(s, 0xFFFFFFFFu, 1);
                                            }},
                                        BadCase{"logit_bias has token 7 twice",
                                                [](v1::SequenceSpec* s) {
                                                  AddBias(s, 7, 1);
                                                }},
                                        BadCase{"logit_bias of token 8",
                                                [](v1::SequenceSpec* s) {
                                                  AddBias(s, 8, 101);
                                                }},
                                        BadCase{"logit_bias of token 8",
                                                [](v1::SequenceSpec* s) {
                                                  AddBias(s, 8, NAN);
                                                }},
                                        BadCase{"logit_bias of token 8",
                                                [](v1::SequenceSpec* s) {
                                                  AddBias(s, 8, -INFINITY);
                                                }},
                                        BadCase{"logit_bias has 1026 tokens",
                                                [](v1::SequenceSpec* s) {
                                                  for (int i = 0; i < 1024; ++i)
                                                    AddBias(s, 8, 1);
                                                }},
                                        BadCase{
                                            "sampling.allowed_token_ids has "
                                            "token 100",
                                            [](v1::SequenceSpec* s) {
                                              s->mutable_sampling()
                                                  ->add_allowed_token_ids(100);
                                            }},
                                        BadCase{
                                            "sampling.allowed_mask has 2 bytes",
                                            [](v1::SequenceSpec* s) {
                                              s->mutable_sampling()
                                                  ->set_allowed_mask("ab");
                                            }},
                                        BadCase{
                                            "allowed_token_ids has none but",
                                            [](v1::SequenceSpec* s) {
                                              s->add_stop_token_ids(0);
                                              s->add_stop_token_ids(50);
                                            }},
                                        BadCase{"min_output_tokens",
                                                [](v1::SequenceSpec* s) {
                                                  s->set_min_output_tokens(11);
                                                }},
                                        BadCase{"min_output_tokens",
                                                [](v1::SequenceSpec* s) {
                                                  s->set_min_output_tokens(
                                                      0xFFFFFFFFu);
                                                }},
                                        BadCase{"top_logprobs",
                                                [](v1::SequenceSpec* s) {
                                                  s->set_top_logprobs(21);
                                                }},
                                        BadCase{"top_logprobs",
                                                [](v1::SequenceSpec* s) {
                                                  s->set_top_logprobs(
                                                      0xFFFFFFFFu);
                                                }},
                                        BadCase{"prompt_logprobs.first is 0",
                                                [](v1::SequenceSpec* s) {
                                                  s->mutable_prompt_logprobs()
                                                      ->clear_first();
                                                }},
                                        BadCase{"prompt_logprobs.first is 3",
                                                [](v1::SequenceSpec* s) {
                                                  s->mutable_prompt_logprobs()
                                                      ->set_first(3);
                                                }},
                                        BadCase{"prompt_logprobs.first is 429",
                                                [](v1::SequenceSpec* s) {
                                                  s->mutable_prompt_logprobs()
                                                      ->set_first(0xFFFFFFFFu);
                                                }},
                                        BadCase{"prompt_logprobs.top is 21",
                                                [](v1::SequenceSpec* s) {
                                                  s->mutable_prompt_logprobs()
                                                      ->set_top(21);
                                                }},
                                        BadCase{"target",
                                                [](v1::SequenceSpec* s) {
                                                  s->mutable_target()
                                                      ->set_ttft_ms(86'400'001);
                                                }},
                                        BadCase{"target",
                                                [](v1::SequenceSpec* s) {
                                                  s->mutable_target()
                                                      ->set_itl_ms(0xFFFFFFFFu);
                                                }},
                                        BadCase{
                                            "request_class is 3",
                                            [](v1::SequenceSpec* s) {
                                              s->set_request_class(
                                                  static_cast<v1::RequestClass>(
                                                      3));
                                            }},
                                        BadCase{"priority is 101",
                                                [](v1::SequenceSpec* s) {
                                                  s->set_priority(101);
                                                }},
                                        BadCase{"priority is -101",
                                                [](v1::SequenceSpec* s) {
                                                  s->set_priority(-101);
                                                }},
                                        BadCase{"traceparent",
                                                [](v1::SequenceSpec* s) {
                                                  s->set_traceparent("00");
                                                }},
                                        BadCase{"traceparent",
                                                [](v1::SequenceSpec* s) {
                                                  s->set_traceparent(
                                                      std::string(
                                                          kTraceparent) +
                                                      "-");
                                                }}));

TEST(SequenceSpecTest, AnAttemptEndsInTime) {
  const absl::Time now = absl::FromUnixSeconds(1000);
  v1::SequenceSpec spec;
  EXPECT_EQ(DeadlineOf(spec, now), now + absl::Minutes(10));
  spec.set_deadline_ms(1500);
  EXPECT_EQ(DeadlineOf(spec, now), now + absl::Milliseconds(1500));
}

}  // namespace
}  // namespace baton::worker
