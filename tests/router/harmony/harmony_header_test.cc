#include "router/harmony/harmony_header.h"

#include <string>

#include <gtest/gtest.h>

namespace baton::router {
namespace {

TEST(HarmonyHeaderTest, Roles) {
  for (const char* text : {"", "a", "assistant", "assistant ", "assistant t",
                           "assistant to=", "assistant\nto=functions.f",
                           "assistant to=functions.f "}) {
    EXPECT_TRUE(MayBeHarmonyRole(text)) << text;
  }
  for (const char* text :
       {"user", " assistant", "assistants", "assistantto=f", "assistant for",
        "assistant to=f g", "assistant tox"}) {
    EXPECT_FALSE(MayBeHarmonyRole(text)) << text;
  }
  EXPECT_FALSE(IsHarmonyRole("assis"));
  EXPECT_TRUE(IsHarmonyRole("assistant"));
}

TEST(HarmonyHeaderTest, ChannelsAndRecipients) {
  const auto read = [](const char* role, const char* channel) {
    const HarmonyHeader header = ReadHarmonyHeader(role, channel);
    return header.channel + "|" + header.recipient;
  };
  EXPECT_EQ(read("assistant", "analysis"), "analysis|");
  EXPECT_EQ(read("assistant", "commentary to=functions.f "),
            "commentary|functions.f");
  EXPECT_EQ(read("assistant to=functions.f", "commentary json"),
            "commentary|functions.f");
  EXPECT_EQ(read("assistant to=functions.f ", ""), "|functions.f");
  EXPECT_EQ(read("assistant", " to=functions.f\ncommentary"),
            "commentary|functions.f");
  EXPECT_EQ(read("assistant", ""), "|");
}

TEST(HarmonyHeaderTest, Bodies) {
  std::string name;
  EXPECT_EQ(BodyOf({"analysis", ""}, &name), HarmonyBody::kReasoning);
  EXPECT_EQ(BodyOf({"commentary", "python"}, &name), HarmonyBody::kReasoning);
  EXPECT_EQ(BodyOf({"", "browser.open"}, &name), HarmonyBody::kReasoning);
  for (const char* channel : {"final", "commentary", "other", ""}) {
    EXPECT_EQ(BodyOf({channel, ""}, nullptr), HarmonyBody::kContent);
  }
  EXPECT_EQ(name, "");
  EXPECT_EQ(BodyOf({"analysis", "functions.f.g"}, &name),
            HarmonyBody::kFunction);
  EXPECT_EQ(name, "f.g");
}

}  // namespace
}  // namespace baton::router
