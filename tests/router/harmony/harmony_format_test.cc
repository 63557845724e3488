#include "router/harmony/harmony_format.h"

#include <string>

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

namespace baton::router {
namespace {

TEST(HarmonyFormatTest, IsFoundFromTheTemplate) {
  EXPECT_TRUE(WritesHarmony(
      "{{ '<|start|>' + m.role + '<|channel|>final<|message|>' }}"));
  EXPECT_FALSE(WritesHarmony("<|start|>{{ m.role }}<|message|>"));
  EXPECT_FALSE(WritesHarmony("<|im_start|>{{ m.role }}<|im_end|>"));
  EXPECT_FALSE(WritesHarmony(""));
}

TEST(HarmonyFormatTest, TheOpeningIsWhatThePromptHasBegun) {
  EXPECT_EQ(HarmonyOpening("<|start|>user<|message|>Hi<|end|>"
                           "<|start|>assistant"),
            "assistant");
  EXPECT_EQ(HarmonyOpening("<|start|>assistant<|channel|>final<|message|>So"),
            "assistant<|channel|>final<|message|>");
  EXPECT_EQ(HarmonyOpening("<|start|>assistant<|channel|>ana"),
            "assistant<|channel|>ana");
  // Nothing.
  EXPECT_EQ(HarmonyOpening("<|start|>user<|message|>Hi<|end|>"), "");
  EXPECT_EQ(HarmonyOpening("<|start|>assistant<|message|>Hi<|return|>"), "");
  EXPECT_EQ(HarmonyOpening("Hi"), "");
  EXPECT_EQ(HarmonyOpening(""), "");
  EXPECT_EQ(HarmonyOpening(absl::StrCat(
                "<|start|>", std::string(kMaxHarmonyHeader + 1, 'x'))),
            "");
}

}  // namespace
}  // namespace baton::router
