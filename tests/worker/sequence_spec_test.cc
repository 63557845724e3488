#include "worker/sequence_spec.h"

#include <functional>
#include <memory>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace baton::worker {
namespace {

using ::testing::HasSubstr;

constexpr int32_t kVocab = 100;

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
  return spec;
}

TEST(MakeSequenceTest, TakesEveryField) {
  const auto sequence = MakeSequence(SequenceId{3}, Good(), kVocab);
  ASSERT_TRUE(sequence.ok()) << sequence.status();
  EXPECT_EQ((*sequence)->num_tokens(), 4);
  EXPECT_EQ((*sequence)->prompt_length(), 3);
  EXPECT_EQ((*sequence)->num_output(), 1);
  EXPECT_EQ((*sequence)->stop().max_output_tokens, 10);
  EXPECT_EQ((*sequence)->stop().stop_token_ids, std::vector<TokenId>{99});
  EXPECT_EQ((*sequence)->sampling().seed, 1234u);
  EXPECT_FLOAT_EQ((*sequence)->sampling().top_p, 0.9f);
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

INSTANTIATE_TEST_SUITE_P(
    All, BadSequenceTest,
    ::testing::Values(
        BadCase{"prompt_length",
                [](v1::SequenceSpec* s) { s->clear_tokens(); }},
        BadCase{"tokens", [](v1::SequenceSpec* s) { s->set_tokens(0, 100); }},
        BadCase{"tokens",
                [](v1::SequenceSpec* s) { s->set_tokens(0, 0xFFFFFFFFu); }},
        BadCase{"prompt_length",
                [](v1::SequenceSpec* s) { s->set_prompt_length(0); }},
        BadCase{"prompt_length",
                [](v1::SequenceSpec* s) { s->set_prompt_length(5); }},
        BadCase{"max_output_tokens",
                [](v1::SequenceSpec* s) { s->set_max_output_tokens(1); }},
        BadCase{
            "max_output_tokens",
            [](v1::SequenceSpec* s) { s->set_max_output_tokens(0xFFFFFFFFu); }},
        BadCase{"stop_token_ids",
                [](v1::SequenceSpec* s) { s->set_stop_token_ids(0, 100); }},
        BadCase{"top_p", [](v1::SequenceSpec* s) {
                  s->mutable_sampling()->set_top_p(0);
                }}));

}  // namespace
}  // namespace baton::worker
