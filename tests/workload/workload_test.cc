#include "workload/workload.h"

#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace baton::workload {
namespace {

using ::testing::ElementsAre;

std::vector<PlannedRequest> Some() {
  std::vector<PlannedRequest> requests(4);
  for (int i = 0; i < 4; ++i) {
    requests[i].at = absl::Seconds(i);
    requests[i].prompt_tokens = 100 * (i + 1);
    requests[i].output_tokens = 10;
    requests[i].prefix = {1, 2};
    requests[i].prefix_block = 512;
  }
  return requests;
}

std::vector<double> Times(const std::vector<PlannedRequest>& requests) {
  std::vector<double> times;
  for (const PlannedRequest& request : requests) {
    times.push_back(absl::ToDoubleSeconds(request.at));
  }
  return times;
}

TEST(WorkloadTest, SyntheticIsAsAsked) {
  const SyntheticOptions options = {.arrivals = {.rate = 100},
                                    .prompt = {.least = 5, .most = 9},
                                    .output = {.least = 3, .most = 3},
                                    .shared_prefix = 4,
                                    .duration = absl::Seconds(10)};
  const auto requests = MakeSynthetic(options);
  EXPECT_GT(requests.size(), 850u);
  EXPECT_LT(requests.size(), 1150u);
  absl::Duration last;
  std::vector<int> lengths(10);
  for (const PlannedRequest& request : requests) {
    EXPECT_GE(request.at, last);
    last = request.at;
    ++lengths.at(static_cast<size_t>(request.prompt_tokens));
    EXPECT_EQ(request.output_tokens, 3);
    EXPECT_EQ(request.prefix_block, 4);
  }
  EXPECT_LT(last, absl::Seconds(10));
  EXPECT_EQ(lengths[4], 0);
  for (int length = 5; length <= 9; ++length) EXPECT_GT(lengths[length], 100);
  const auto again = MakeSynthetic(options);
  EXPECT_EQ(Times(again), Times(requests));
}

TEST(WorkloadTest, FitsTimesAndLengths) {
  const Fitted fitted =
      Fit(Some(), {.time_scale = 0.5, .length_scale = 0.25, .max_context = 80});
  EXPECT_THAT(Times(fitted.requests), ElementsAre(0, 0.5, 1));
  EXPECT_EQ(fitted.requests[1].prompt_tokens, 50);
  EXPECT_EQ(fitted.requests[1].output_tokens, 3);  // 2.5, rounded
  EXPECT_EQ(fitted.requests[1].prefix_block, 128);
  EXPECT_EQ(fitted.too_long, 1u);
  // At least one token.
  EXPECT_EQ(Fit(Some(), {.length_scale = 0.001}).requests[0].output_tokens, 1);
}

TEST(WorkloadTest, FitsIntoATimeAndANumber) {
  EXPECT_THAT(Times(Fit(Some(), {.duration = absl::Seconds(2)}).requests),
              ElementsAre(0, 1));
  EXPECT_THAT(Times(Fit(Some(), {.max_requests = 3}).requests),
              ElementsAre(0, 1, 2));
}

TEST(WorkloadTest, AtRateKeepsTheOrderAndTheShape) {
  // 4 requests over 3 seconds.
  EXPECT_THAT(Times(AtRate(Some(), 4.0 / 6)), ElementsAre(0, 2, 4, 6));
  std::vector<PlannedRequest> one(1);
  EXPECT_THAT(Times(AtRate(one, 5)), ElementsAre(0));
}

}  // namespace
}  // namespace baton::workload
