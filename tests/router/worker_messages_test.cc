// What the router sends is what a worker takes, field by field, and what
// workers send back is checked.
#include "router/worker_messages.h"

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/output_guides.h"
#include "worker/sequence_spec.h"

namespace baton::router {
namespace {

using ::testing::ElementsAre;

constexpr int32_t kVocab = 100;
constexpr scheduling::Urgency kUrgency = {
    .request_class = scheduling::RequestClass::kBatch,
    .priority = 7,
    .ttft_target_seconds = 0.25,
    .itl_target_seconds = 0.029};

scheduling::RequestSpec FullSpec() {
  scheduling::RequestSpec spec;
  spec.id = "r1";
  spec.prompt = {1, 2, 3};
  spec.sampling.temperature = 0.5f;
  spec.sampling.top_k = 7;
  spec.sampling.top_p = 0.9f;
  spec.sampling.min_p = 0.1f;
  spec.sampling.repetition_penalty = 1.5f;
  spec.sampling.presence_penalty = 0.25f;
  spec.sampling.frequency_penalty = -0.25f;
  spec.sampling.logit_bias = {{4, -100.0f}, {90, 0.5f}};
  spec.sampling.allowed = std::make_shared<scheduling::TokenMask>(
      kVocab, std::vector<TokenId>{0, 4, 98, 99});
  spec.sampling.seed = 0xFFFFFFFFFFFFFFFFull;
  spec.stop.max_output_tokens = 9;
  spec.stop.stop_token_ids = {98, 99};
  spec.stop.min_output_tokens = 5;
  spec.top_logprobs = 20;
  spec.traceparent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
  return spec;
}

TEST(MakeSequenceSpecTest, ManyAllowedTokensGoAsBits) {
  scheduling::RequestSpec spec = FullSpec();
  std::vector<TokenId> tokens;
  for (TokenId token = 0; token < kVocab; token += 3) tokens.push_back(token);
  spec.sampling.allowed =
      std::make_shared<scheduling::TokenMask>(kVocab, tokens);
  const v1::SequenceSpec wire =
      MakeSequenceSpec(spec, {}, absl::Seconds(1), kUrgency);
  EXPECT_EQ(wire.sampling().allowed_token_ids_size(), 0);
  EXPECT_EQ(wire.sampling().allowed_mask().size(), 13u);
  const auto sequence = worker::MakeSequence(SequenceId{1}, wire, kVocab);
  ASSERT_TRUE(sequence.ok()) << sequence.status();
  EXPECT_EQ(*(*sequence)->sampling().allowed, *spec.sampling.allowed);
}

TEST(MakeSequenceSpecTest, AWorkerTakesTheGrammar) {
  scheduling::GrammarBuilder b;
  const auto whole = b.NewRule();
  const auto list = b.NewRule();
  b.Define(whole,
           b.Sequence({b.Literal(std::string("a\0\xff", 3)),
                       b.Repeat(b.Call(list), 2, 7),
                       b.Repeat(b.Literal("x"), 0, scheduling::kAnyNumber)}));
  b.Define(list, b.Choice({b.ByteRange(0, 9), b.ByteRange(200, 255)}));
  auto grammar = std::make_shared<scheduling::Grammar>();
  ASSERT_TRUE(b.Build(grammar.get()).ok());
  scheduling::RequestSpec spec = FullSpec();
  spec.grammar = grammar;
  const v1::SequenceSpec wire =
      MakeSequenceSpec(spec, {}, absl::Seconds(1), kUrgency);
  const auto taken = worker::FromWire(wire.grammar());
  ASSERT_TRUE(taken.ok()) << taken.status();
  EXPECT_EQ(*taken, *grammar);
}

TEST(MakeVocabularyTest, SpecialTokensHaveNoText) {
  const auto tokenizer =
      Tokenizer::Load(absl::StrCat(BATON_SOURCE_DIR, "/models/stories"));
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  const auto size = static_cast<int32_t>((*tokenizer)->vocab_size());
  const v1::Vocabulary all = MakeVocabulary(**tokenizer, size + 10);
  ASSERT_EQ(all.texts_size(), size);
  int without = 0;
  for (TokenId token = 0; token < size; ++token) {
    if ((*tokenizer)->IsSpecial(token)) {
      EXPECT_EQ(all.texts(token), "") << token;
      ++without;
    } else {
      EXPECT_EQ(all.texts(token), (*tokenizer)->TokenBytes(token)) << token;
    }
  }
  EXPECT_GT(without, 0);
  EXPECT_EQ(MakeVocabulary(**tokenizer, 20).texts_size(), 20);
}

TEST(MakeSequenceSpecTest, AWorkerTakesAllOfTheRequest) {
  const scheduling::RequestSpec spec = FullSpec();
  const v1::SequenceSpec wire =
      MakeSequenceSpec(spec, {8, 9}, absl::Milliseconds(1500), kUrgency);
  EXPECT_EQ(wire.request_id(), "r1");
  EXPECT_EQ(wire.traceparent(), spec.traceparent);
  EXPECT_EQ(wire.deadline_ms(), 1500u);

  const auto sequence = worker::MakeSequence(SequenceId{1}, wire, kVocab);
  ASSERT_TRUE(sequence.ok()) << sequence.status();
  EXPECT_THAT((*sequence)->tokens(), ElementsAre(1, 2, 3, 8, 9));
  EXPECT_EQ((*sequence)->prompt_length(), 3);
  const scheduling::SamplingParams& sampling = (*sequence)->sampling();
  EXPECT_EQ(sampling.temperature, spec.sampling.temperature);
  EXPECT_EQ(sampling.top_k, spec.sampling.top_k);
  EXPECT_EQ(sampling.top_p, spec.sampling.top_p);
  EXPECT_EQ(sampling.min_p, spec.sampling.min_p);
  EXPECT_EQ(sampling.repetition_penalty, spec.sampling.repetition_penalty);
  EXPECT_EQ(sampling.presence_penalty, spec.sampling.presence_penalty);
  EXPECT_EQ(sampling.frequency_penalty, spec.sampling.frequency_penalty);
  EXPECT_EQ(sampling.logit_bias, spec.sampling.logit_bias);
  ASSERT_NE(sampling.allowed, nullptr);
  EXPECT_EQ(*sampling.allowed, *spec.sampling.allowed);
  EXPECT_THAT(wire.sampling().allowed_token_ids(), ElementsAre(0, 4, 98, 99));
  EXPECT_EQ(sampling.seed, spec.sampling.seed);
  const scheduling::StopParams& stop = (*sequence)->stop();
  EXPECT_EQ(stop.max_output_tokens, spec.stop.max_output_tokens);
  EXPECT_EQ(stop.stop_token_ids, spec.stop.stop_token_ids);
  EXPECT_EQ(stop.min_output_tokens, spec.stop.min_output_tokens);
  EXPECT_EQ((*sequence)->top_logprobs(), spec.top_logprobs);
  const scheduling::Urgency& urgency = (*sequence)->urgency();
  EXPECT_EQ(urgency.request_class, kUrgency.request_class);
  EXPECT_EQ(urgency.priority, kUrgency.priority);
  EXPECT_DOUBLE_EQ(urgency.ttft_target_seconds, kUrgency.ttft_target_seconds);
  EXPECT_DOUBLE_EQ(urgency.itl_target_seconds, kUrgency.itl_target_seconds);
}

TEST(MakeSequenceSpecTest, WhatWasNotAskedForIsNotSent) {
  scheduling::RequestSpec spec;
  spec.prompt = {1};
  const v1::SequenceSpec wire =
      MakeSequenceSpec(spec, {}, absl::Seconds(1), {});
  EXPECT_EQ(wire.sampling().logit_bias_size(), 0);
  EXPECT_EQ(wire.sampling().allowed_token_ids_size(), 0);
  EXPECT_EQ(wire.min_output_tokens(), 0u);
  EXPECT_EQ(wire.top_logprobs(), 0u);
  EXPECT_TRUE(wire.traceparent().empty());
  EXPECT_FALSE(wire.has_target());
  EXPECT_TRUE(worker::MakeSequence(SequenceId{1}, wire, kVocab).ok());
}

TEST(MakeSequenceSpecTest, NoTargetIsLostOnTheWay) {
  const auto sent = [](double seconds) {
    scheduling::RequestSpec spec;
    spec.prompt = {1};
    return MakeSequenceSpec(spec, {}, absl::Seconds(1),
                            {.ttft_target_seconds = seconds})
        .target()
        .ttft_ms();
  };
  EXPECT_EQ(sent(0), 0u);
  EXPECT_EQ(sent(1e-9), 1u);
  EXPECT_EQ(sent(0.0015), 2u);
  EXPECT_EQ(sent(1e9), scheduling::kMaxTargetMs);
}

v1::Token GoodToken() {
  v1::Token token;
  token.set_index(3);
  token.set_id(99);
  token.set_logprob(-0.5f);
  token.set_finish_reason(v1::FINISH_REASON_STOP);
  for (uint32_t id : {99u, 0u}) {
    v1::TopToken* top = token.add_top();
    top->set_id(id);
    top->set_logprob(-0.5f - static_cast<float>(id));
  }
  return token;
}

TEST(FromWireTest, TakesATokenWithTheLikeliest) {
  const auto reported = FromWire(GoodToken(), kVocab);
  ASSERT_TRUE(reported.has_value());
  EXPECT_EQ(reported->index, 3);
  EXPECT_EQ(reported->token, 99);
  EXPECT_EQ(reported->logprob, -0.5f);
  EXPECT_EQ(reported->finish, scheduling::FinishReason::kStop);
  EXPECT_THAT(reported->top, ElementsAre(scheduling::TokenLogprob{99, -99.5f},
                                         scheduling::TokenLogprob{0, -0.5f}));
}

v1::PromptLogprobs GoodPromptLogprobs() {
  v1::PromptLogprobs wire;
  wire.set_first(2);
  wire.set_top(2);
  for (const uint32_t id : {99u, 0u, 4u, 5u}) {
    wire.add_top_ids(id);
    wire.add_top_logprobs(-static_cast<float>(id));
  }
  wire.add_logprobs(-0.5f);
  wire.add_logprobs(-1.5f);
  return wire;
}

TEST(FromWireTest, TakesThePromptsOwnLogprobs) {
  const auto reported =
      FromWire(GoodPromptLogprobs(), /*prompt_tokens=*/4, kVocab);
  ASSERT_TRUE(reported.has_value());
  EXPECT_EQ(reported->first, 2);
  EXPECT_THAT(reported->logprobs, ElementsAre(-0.5f, -1.5f));
  ASSERT_EQ(reported->top.size(), 2u);
  EXPECT_THAT(reported->top[1],
              ElementsAre(scheduling::TokenLogprob{4, -4.0f},
                          scheduling::TokenLogprob{5, -5.0f}));
  // None of the likeliest.
  v1::PromptLogprobs wire = GoodPromptLogprobs();
  wire.clear_top();
  wire.clear_top_ids();
  wire.clear_top_logprobs();
  EXPECT_TRUE(FromWire(wire, 4, kVocab)->top.empty());
}

TEST(FromWireTest, RefusesPromptLogprobsThatCannotBe) {
  EXPECT_FALSE(FromWire(GoodPromptLogprobs(), 3, kVocab).has_value());
  EXPECT_FALSE(FromWire(GoodPromptLogprobs(), 2, kVocab).has_value());
  EXPECT_FALSE(FromWire(GoodPromptLogprobs(), 4, 99).has_value());
  const auto bad = [](const auto& change) {
    v1::PromptLogprobs wire = GoodPromptLogprobs();
    change(&wire);
    return !FromWire(wire, 4, kVocab).has_value();
  };
  EXPECT_TRUE(bad([](auto* wire) { wire->set_first(0); }));
  EXPECT_TRUE(bad([](auto* wire) { wire->set_first(0xffffffffu); }));
  EXPECT_TRUE(bad([](auto* wire) { wire->set_top(1); }));
  EXPECT_TRUE(bad([](auto* wire) { wire->set_top(0x80000002u); }));
  EXPECT_TRUE(bad([](auto* wire) { wire->add_top_ids(1); }));
  EXPECT_TRUE(
      bad([](auto* wire) { wire->mutable_top_logprobs()->RemoveLast(); }));
}

TEST(MakeCancelTest, SaysWhyAndWhetherAnybodyWantsIt) {
  const v1::RouterMessage failed = MakeCancel(
      {scheduling::AttemptId{9}, scheduling::WorkerId{1}, "it failed"});
  EXPECT_EQ(failed.cancel().attempt(), 9u);
  EXPECT_EQ(failed.cancel().reason(), "it failed");
  EXPECT_FALSE(failed.cancel().abandoned());
  const v1::RouterMessage abandoned = MakeCancel(
      {scheduling::AttemptId{9}, scheduling::WorkerId{1}, "gone", true});
  EXPECT_TRUE(abandoned.cancel().abandoned());
}

TEST(FromWireTest, RefusesWhatNoWorkerOfThisModelCanSay) {
  v1::Token token = GoodToken();
  token.set_id(100);
  EXPECT_FALSE(FromWire(token, kVocab).has_value());
  token = GoodToken();
  token.set_index(0x80000000u);
  EXPECT_FALSE(FromWire(token, kVocab).has_value());
  token = GoodToken();
  token.mutable_top(1)->set_id(100);
  EXPECT_FALSE(FromWire(token, kVocab).has_value());
  token = GoodToken();
  while (token.top_size() < scheduling::kMaxTopLogprobs) {
    *token.add_top() = token.top(0);
  }
  EXPECT_TRUE(FromWire(token, kVocab).has_value());
  *token.add_top() = token.top(0);
  EXPECT_FALSE(FromWire(token, kVocab).has_value());
}

}  // namespace
}  // namespace baton::router
