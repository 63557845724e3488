#include "scheduling/request.h"

#include <cmath>
#include <limits>
#include <memory>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace baton::scheduling {
namespace {

using ::testing::HasSubstr;

TEST(SamplingParamsTest, DefaultsAreValid) {
  EXPECT_TRUE(Validate(SamplingParams()).ok());
}

struct BadCase {
  const char* field;
  void (*set)(SamplingParams*);
};

class BadSamplingTest : public ::testing::TestWithParam<BadCase> {};

TEST_P(BadSamplingTest, NamesTheField) {
  SamplingParams params;
  GetParam().set(&params);
  const absl::Status status = Validate(params);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr(GetParam().field));
}

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

INSTANTIATE_TEST_SUITE_P(
    All, BadSamplingTest,
    ::testing::Values(
        BadCase{"temperature", [](SamplingParams* p) { p->temperature = -1; }},
        BadCase{"temperature",
                [](SamplingParams* p) { p->temperature = kNan; }},
        BadCase{"top_k", [](SamplingParams* p) { p->top_k = -1; }},
        BadCase{"top_p", [](SamplingParams* p) { p->top_p = 0; }},
        BadCase{"top_p", [](SamplingParams* p) { p->top_p = 1.5f; }},
        BadCase{"top_p", [](SamplingParams* p) { p->top_p = kNan; }},
        BadCase{"min_p", [](SamplingParams* p) { p->min_p = -0.1f; }},
        BadCase{"min_p", [](SamplingParams* p) { p->min_p = 1.1f; }},
        BadCase{"repetition_penalty",
                [](SamplingParams* p) { p->repetition_penalty = 0; }},
        BadCase{"presence_penalty",
                [](SamplingParams* p) { p->presence_penalty = 2.5f; }},
        BadCase{"frequency_penalty",
                [](SamplingParams* p) { p->frequency_penalty = -3; }},
        BadCase{"logit_bias has token -1",
                [](SamplingParams* p) {
                  p->logit_bias = {{-1, 1}};
                }},
        BadCase{"logit_bias of token 7",
                [](SamplingParams* p) {
                  p->logit_bias = {{3, 1}, {7, 100.5f}};
                }},
        BadCase{"logit_bias of token 7",
                [](SamplingParams* p) {
                  p->logit_bias = {{7, -101}};
                }},
        BadCase{"logit_bias of token 7",
                [](SamplingParams* p) {
                  p->logit_bias = {{7, kNan}};
                }},
        BadCase{"logit_bias has token 7 twice",
                [](SamplingParams* p) {
                  p->logit_bias = {{3, 1}, {7, 1}, {7, 2}};
                }},
        BadCase{"logit_bias is not sorted",
                [](SamplingParams* p) {
                  p->logit_bias = {{7, 1}, {3, 1}};
                }},
        BadCase{"logit_bias has 1025 tokens", [](SamplingParams* p) {
                  for (TokenId token = 0; token <= kMaxLogitBias; ++token) {
                    p->logit_bias.push_back({token, 1});
                  }
                }}));

TEST(SamplingParamsTest, TheLargestBiasIsValid) {
  SamplingParams params;
  for (TokenId token = 0; token < kMaxLogitBias; ++token) {
    params.logit_bias.push_back({token, token % 2 == 0 ? 100.0f : -100.0f});
  }
  EXPECT_TRUE(Validate(params).ok()) << Validate(params);
}

TEST(SamplingParamsTest, SomethingIsLeftToSample) {
  SamplingParams params;
  StopParams stop;
  stop.stop_token_ids = {7, 9};
  stop.min_output_tokens = 1;
  EXPECT_TRUE(Validate(params, stop).ok());
  params.allowed = std::make_shared<TokenMask>(20, std::vector<TokenId>{7, 8});
  EXPECT_TRUE(Validate(params, stop).ok());
  params.allowed = std::make_shared<TokenMask>(20, std::vector<TokenId>{9, 7});
  const absl::Status status = Validate(params, stop);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("allowed_token_ids"));
  // It may end at once.
  stop.min_output_tokens = 0;
  EXPECT_TRUE(Validate(params, stop).ok());
}

TEST(CheckFinishedTest, StopTokenWinsOverLength) {
  StopParams stop;
  stop.max_output_tokens = 3;
  stop.stop_token_ids = {7, 9};
  EXPECT_EQ(CheckFinished(stop, 1, 5), std::nullopt);
  EXPECT_EQ(CheckFinished(stop, 3, 5), FinishReason::kLength);
  EXPECT_EQ(CheckFinished(stop, 1, 9), FinishReason::kStop);
  EXPECT_EQ(CheckFinished(stop, 3, 9), FinishReason::kStop);
}

TEST(CheckFinishedTest, AStopTokenEndsNothingWhereItMayNotBeSampled) {
  StopParams stop;
  stop.max_output_tokens = 4;
  stop.stop_token_ids = {9};
  stop.min_output_tokens = 2;
  EXPECT_EQ(CheckFinished(stop, 1, 9), std::nullopt);
  EXPECT_EQ(CheckFinished(stop, 2, 9), std::nullopt);
  EXPECT_EQ(CheckFinished(stop, 3, 9), FinishReason::kStop);
  stop.min_output_tokens = 4;
  EXPECT_EQ(CheckFinished(stop, 4, 9), FinishReason::kLength);
}

}  // namespace
}  // namespace baton::scheduling
