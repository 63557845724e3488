#include "cli/gpus.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace baton::cli {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

using Gpus = std::vector<std::string>;

TEST(ParseGpuListTest, TakesWhatCudaTakes) {
  EXPECT_THAT(ParseGpuList("0"), ElementsAre("0"));
  EXPECT_THAT(ParseGpuList("2, 0,GPU-8932f937"),
              ElementsAre("2", "0", "GPU-8932f937"));
  EXPECT_THAT(ParseGpuList(""), IsEmpty());
  EXPECT_THAT(ParseGpuList("-1"), IsEmpty());
  EXPECT_THAT(ParseGpuList("1,-1,0"), ElementsAre("1"));
  EXPECT_THAT(ParseGpuList("3,,0"), ElementsAre("3"));
}

TEST(DealGpusTest, EachWorkerHasItsOwnWhileThereAreEnough) {
  const auto dealt = DealGpus({"0", "1", "2", "3", "4"}, 2, 2);
  ASSERT_TRUE(dealt.ok());
  EXPECT_THAT(*dealt, ElementsAre(Gpus{"0", "1"}, Gpus{"2", "3"}));
}

TEST(DealGpusTest, TooFewAreSharedByGroups) {
  const auto ones = DealGpus({"0", "2"}, 3, 1);
  ASSERT_TRUE(ones.ok());
  EXPECT_THAT(*ones, ElementsAre(Gpus{"0"}, Gpus{"2"}, Gpus{"0"}));
  // Never half of one group and half of another.
  const auto pairs = DealGpus({"0", "1", "2"}, 2, 2);
  ASSERT_TRUE(pairs.ok());
  EXPECT_THAT(*pairs, ElementsAre(Gpus{"0", "1"}, Gpus{"0", "1"}));
}

TEST(DealGpusTest, TooFewForOneWorkerIsAnError) {
  const absl::Status status = DealGpus({"0"}, 1, 2).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("--tensor-parallel 2: there is 1 GPU"));
  EXPECT_THAT(std::string(DealGpus({"0", "1", "2"}, 1, 4).status().message()),
              HasSubstr("--tensor-parallel 4: there are 3 GPUs"));
}

TEST(CheckNoneSharedTest, SaysHowManyThereShouldBe) {
  EXPECT_TRUE(CheckNoneShared({"0", "1", "2"}, 3, 1, "--flag").ok());
  EXPECT_TRUE(CheckNoneShared({"0", "1", "2", "3"}, 2, 2, "--flag").ok());
  const absl::Status status = CheckNoneShared({"0"}, 2, 1, "--flag");
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(
      std::string(status.message()),
      HasSubstr("--flag: 2 workers with GPUs of their own need 2: there is 1"));
  EXPECT_THAT(
      std::string(CheckNoneShared({"0", "1", "2"}, 2, 2, "--flag").message()),
      HasSubstr("need 4: there are 3 GPUs"));
}

}  // namespace
}  // namespace baton::cli
