#include "scheduling/request.h"

#include <cmath>
#include <limits>

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
                [](SamplingParams* p) { p->frequency_penalty = -3; }}));

TEST(CheckFinishedTest, StopTokenWinsOverLength) {
  StopParams stop;
  stop.max_output_tokens = 3;
  stop.stop_token_ids = {7, 9};
  EXPECT_EQ(CheckFinished(stop, 1, 5), std::nullopt);
  EXPECT_EQ(CheckFinished(stop, 3, 5), FinishReason::kLength);
  EXPECT_EQ(CheckFinished(stop, 1, 9), FinishReason::kStop);
  EXPECT_EQ(CheckFinished(stop, 3, 9), FinishReason::kStop);
}

}  // namespace
}  // namespace baton::scheduling
