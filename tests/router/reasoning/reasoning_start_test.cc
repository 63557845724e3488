#include "router/reasoning/reasoning_start.h"

#include <gtest/gtest.h>

namespace baton::router {
namespace {

TEST(ReasoningStartTest, TemplatesThatKnowTheMarkers) {
  // As Qwen 3's and DeepSeek R1's take what was thought out of a history.
  EXPECT_TRUE(WritesReasoning("{% set content = content.split('</think>') %}"));
  EXPECT_TRUE(WritesReasoning("{{ '<|Assistant|><think>\\n' }}"));
  EXPECT_FALSE(WritesReasoning("{{ message.content }}"));
  EXPECT_FALSE(WritesReasoning("Say what you think."));
}

TEST(ReasoningStartTest, FollowsFromTheEndOfThePrompt) {
  EXPECT_EQ(FindReasoningStart("<|im_start|>assistant\n"),
            ReasoningStart::kPossible);
  EXPECT_EQ(FindReasoningStart("<|im_start|>assistant\n<think>\n"),
            ReasoningStart::kOpen);
  EXPECT_EQ(FindReasoningStart("<|Assistant|><think>"), ReasoningStart::kOpen);
  EXPECT_EQ(
      FindReasoningStart("<|im_start|>assistant\n<think>\n\n</think>\n\n"),
      ReasoningStart::kNone);
  // What earlier messages say does not count.
  EXPECT_EQ(FindReasoningStart("<think>a</think>b\nassistant: "),
            ReasoningStart::kPossible);
  EXPECT_EQ(FindReasoningStart(""), ReasoningStart::kPossible);
}

TEST(ReasoningStartTest, WhatGoesOnThinksIfItHadBegunTo) {
  EXPECT_EQ(FindReasoningGoingOn("[assistant] So"), ReasoningStart::kNone);
  EXPECT_EQ(FindReasoningGoingOn("[assistant] <think>So"),
            ReasoningStart::kOpen);
  EXPECT_EQ(FindReasoningGoingOn("<think>So</think>\n\nIt"),
            ReasoningStart::kNone);
  EXPECT_EQ(FindReasoningGoingOn("<think>So</think>\n\n<think>It"),
            ReasoningStart::kOpen);
}

}  // namespace
}  // namespace baton::router
