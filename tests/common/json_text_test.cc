#include "common/json_text.h"

#include <limits>

#include <gtest/gtest.h>

#include "common/json.h"

namespace baton {
namespace {

std::string Quoted(absl::string_view text) {
  std::string out;
  AppendJsonString(text, &out);
  return out;
}

TEST(JsonTextTest, EveryByteReadsBack) {
  std::string text;
  for (int c = 0; c < 0x80; ++c) text.push_back(static_cast<char>(c));
  text += "\xC3\xA9 \xE2\x82\xAC \xF0\x9F\x98\x80";
  EXPECT_EQ(nlohmann::json::parse(Quoted(text)).get<std::string>(), text);
  EXPECT_EQ(Quoted("a\"b\\c\n\x01"), R"("a\"b\\c\n\u0001")");
}

TEST(JsonTextTest, BrokenUtf8BecomesTheReplacementCharacter) {
  EXPECT_EQ(Quoted("a\xFFz\xE2\x82"), "\"a\xEF\xBF\xBDz\xEF\xBF\xBD\"");
}

// A log or an answer that somebody prints does nothing to the terminal.
TEST(JsonTextTest, WhatControlsATerminalIsEscaped) {
  EXPECT_EQ(Quoted("\x1B[2J\x7F"), R"("\u001b[2J\u007f")");
  EXPECT_EQ(Quoted("\xC2\x9B\xE2\x80\xA8\xE2\x80\xAE"),
            R"("\u009b\u2028\u202e")");
  EXPECT_EQ(Quoted(""), "\"\"");
}

TEST(JsonTextTest, FloatsReadBackAndInfinityIsANumber) {
  for (const float value : {0.0f, -1.5f, -0.1f, -17.25e-9f, 3e20f}) {
    std::string out;
    AppendJsonFloat(value, &out);
    EXPECT_EQ(nlohmann::json::parse(out).get<float>(), value) << out;
  }
  std::string out;
  AppendJsonFloat(-std::numeric_limits<float>::infinity(), &out);
  EXPECT_EQ(out, "-9999.0");
}

}  // namespace
}  // namespace baton
