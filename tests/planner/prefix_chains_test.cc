#include "planner/prefix_chains.h"

#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace baton::planner {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using workload::PlannedRequest;

PlannedRequest Prompt(int32_t tokens, std::vector<uint64_t> prefix,
                      int32_t block = 100) {
  PlannedRequest request;
  request.prompt_tokens = tokens;
  request.output_tokens = 1;
  request.prefix = std::move(prefix);
  request.prefix_block = request.prefix.empty() ? 0 : block;
  return request;
}

TEST(PrefixChainsTest, PromptsThatBeginAlikeHaveEntriesInCommon) {
  const std::vector<PlannedRequest> requests = {
      Prompt(300, {7, 8, 9}), Prompt(300, {7, 8, 10}),
      Prompt(200, {8, 9}),  // the same blocks, but not behind the same ones
  };
  const PrefixChains chains(requests);
  EXPECT_FALSE(chains.empty());
  EXPECT_EQ(chains.entry_tokens(), 100);
  EXPECT_EQ(chains.num_entries(), 6);
  EXPECT_THAT(chains.Of(0), ElementsAre(0, 1, 2));
  EXPECT_THAT(chains.Of(1), ElementsAre(0, 1, 3));
  EXPECT_THAT(chains.Of(2), ElementsAre(4, 5));
}

TEST(PrefixChainsTest, OnlyWholeBlocksAreEntries) {
  const std::vector<PlannedRequest> requests = {
      Prompt(299, {1, 2, 3}),
      Prompt(1000, {1, 2}),  // the rest is its own
      Prompt(99, {1}),
  };
  const PrefixChains chains(requests);
  EXPECT_THAT(chains.Of(0), ElementsAre(0, 1));
  EXPECT_THAT(chains.Of(1), ElementsAre(0, 1));
  EXPECT_THAT(chains.Of(2), IsEmpty());
}

TEST(PrefixChainsTest, PromptsWithoutBlocksOrWithOthersHaveNone) {
  const std::vector<PlannedRequest> requests = {
      Prompt(500, {}),
      Prompt(200, {1, 2}),
      Prompt(200, {1, 2}, /*block=*/50),
  };
  const PrefixChains chains(requests);
  EXPECT_THAT(chains.Of(0), IsEmpty());
  EXPECT_THAT(chains.Of(1), ElementsAre(0, 1));
  EXPECT_THAT(chains.Of(2), IsEmpty());
}

TEST(PrefixChainsTest, WithoutBlocksItIsEmpty) {
  const std::vector<PlannedRequest> requests = {Prompt(500, {})};
  const PrefixChains chains(requests);
  EXPECT_TRUE(chains.empty());
  EXPECT_THAT(chains.Of(0), IsEmpty());
  EXPECT_TRUE(PrefixChains().empty());
}

}  // namespace
}  // namespace baton::planner
