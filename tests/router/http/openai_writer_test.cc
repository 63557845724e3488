#include "router/http/openai_writer.h"

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace baton::router::http {
namespace {

using ::testing::ElementsAre;

TEST(TextOffsetTest, CountsACharacterOnceWhateverItsTokens) {
  TextOffset offset;
  std::vector<int64_t> begins;
  for (const char* token :
       {"a", "\xF0\x9F\x99", "\x82", " ok", "\xC3", "\xA9", "!"}) {
    begins.push_back(offset.characters());
    offset.Add(token);
  }
  EXPECT_THAT(begins, ElementsAre(0, 1, 1, 2, 5, 5, 6));
  EXPECT_EQ(offset.characters(), 7);
}

TEST(TextOffsetTest, WhatIsNoTextCountsAsItIsShown) {
  TextOffset offset;
  offset.Add("\xFF\xFE");  // two U+FFFD
  EXPECT_EQ(offset.characters(), 2);
  offset.Add("\xE2\x82");  // a beginning that
  offset.Add("z");         // nothing continues
  EXPECT_EQ(offset.characters(), 4);
}

// The offsets of a whole answer index its text.
TEST(OpenAiWriterTest, OffsetsIndexTheText) {
  Choice choice;
  choice.text = "say: \xF0\x9F\x99\x82 ok";
  choice.text_offset.Add("say: ");
  choice.has_logprobs = true;
  for (const char* bytes : {"\xF0\x9F\x99", "\x82", " ok"}) {
    v1::TokenLogprobs token;
    token.mutable_chosen()->set_token(bytes);
    choice.logprobs.push_back(token);
  }
  const nlohmann::json body = nlohmann::json::parse(
      WholeBody({.chat = false, .id = "c", .model = "m"}, {choice}, {}));
  EXPECT_EQ(body["choices"][0]["logprobs"]["text_offset"],
            nlohmann::json({5, 5, 6}));
}

}  // namespace
}  // namespace baton::router::http
