// Token ids of real models' tokenizers, text by text, as Hugging Face gives
// them (tests/data/tokenizers).

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "router/text/tokenizer.h"
#include "tests/router/text/tokenizer_files.h"

namespace baton::router {
namespace {

using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::HasSubstr;
using ::testing::Optional;

class GoldenTest : public ::testing::TestWithParam<const char*> {};

TEST_P(GoldenTest, EncodesAsHuggingFace) {
  const Tokenizer* const tokenizer = LoadTokenizer(GetParam());
  const nlohmann::json expected = TokenizerJson(GetParam(), "expected.json");
  ASSERT_FALSE(expected.empty());
  for (const nlohmann::json& one : expected) {
    const std::string text = one["text"];
    const auto ids = tokenizer->Encode(text, {.add_special_tokens = false});
    ASSERT_TRUE(ids.ok()) << ids.status();
    EXPECT_THAT(*ids, ElementsAreArray(one["ids"].get<std::vector<TokenId>>()))
        << text;
  }
}

INSTANTIATE_TEST_SUITE_P(Models, GoldenTest,
                         ::testing::Values("llama-3.1", "mistral", "qwen3",
                                           "stories"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::erase_if(name,
                                         [](char c) { return !isalnum(c); });
                           return name;
                         });

TEST(TokenizerModelsTest, LlamaStartsTextsWithItsBeginToken) {
  const Tokenizer* const tokenizer = LoadTokenizer("llama-3.1");
  EXPECT_THAT(*tokenizer->Encode("Hello world"),
              ElementsAre(128000, 9906, 1917));
  EXPECT_THAT(*tokenizer->Encode(""), ElementsAre(128000));
  EXPECT_THAT(tokenizer->bos_id(), Optional(128000));
  EXPECT_THAT(tokenizer->eos_id(), Optional(128009));
  EXPECT_EQ(tokenizer->vocab_size(), 128256);
  EXPECT_THAT(tokenizer->chat_template(), Optional(HasSubstr("loop_messages")));
}

TEST(TokenizerModelsTest, MistralStartsTextsWithItsBeginToken) {
  const Tokenizer* const tokenizer = LoadTokenizer("mistral");
  EXPECT_THAT(*tokenizer->Encode("Hello world"), ElementsAre(1, 22557, 1526));
  EXPECT_THAT(tokenizer->bos_id(), Optional(1));
  EXPECT_THAT(tokenizer->eos_id(), Optional(2));
  EXPECT_EQ(tokenizer->vocab_size(), 32000);
  EXPECT_EQ(tokenizer->chat_template(), std::nullopt);
}

TEST(TokenizerModelsTest, QwenAddsNothing) {
  const Tokenizer* const tokenizer = LoadTokenizer("qwen3");
  EXPECT_THAT(*tokenizer->Encode("Hello world"), ElementsAre(9707, 1879));
  EXPECT_EQ(tokenizer->bos_id(), std::nullopt);
  EXPECT_THAT(tokenizer->eos_id(), Optional(151645));
  EXPECT_EQ(tokenizer->vocab_size(), 151669);
  EXPECT_THAT(tokenizer->chat_template(), Optional(HasSubstr("<|im_start|>")));
}

TEST(TokenizerModelsTest, StoriesStartsTextsWithItsBeginToken) {
  const Tokenizer* const tokenizer = LoadTokenizer("stories");
  EXPECT_THAT(*tokenizer->Encode("Once upon a time"),
              ElementsAre(2043, 411, 438, 258, 384));
  EXPECT_THAT(tokenizer->bos_id(), Optional(2043));
  EXPECT_THAT(tokenizer->eos_id(), Optional(2044));
  EXPECT_EQ(tokenizer->vocab_size(), 2048);
}

TEST(TokenizerModelsTest, SpecialTextIsATokenOnlyWhenAskedFor) {
  const Tokenizer* const tokenizer = LoadTokenizer("qwen3");
  const std::string text = "<|im_start|><think>";
  EXPECT_THAT(*tokenizer->Encode(text), ElementsAre(151644, 151667));
  const auto plain = tokenizer->Encode(text, {.parse_special = false});
  ASSERT_TRUE(plain.ok());
  EXPECT_THAT(*plain, ::testing::Not(::testing::Contains(151644)));
  // <think> is an added token, but not a special one.
  EXPECT_EQ(plain->back(), 151667);
  EXPECT_EQ(*tokenizer->Decode(*plain), text);
}

TEST(TokenizerModelsTest, SpecialTokensAreLeftOutOfTextOnlyWhenAskedFor) {
  const Tokenizer* const tokenizer = LoadTokenizer("qwen3");
  const std::vector<TokenId> ids = {151644, 9707, 151667, 151645};
  EXPECT_TRUE(tokenizer->IsSpecial(151644));
  EXPECT_FALSE(tokenizer->IsSpecial(151667));
  EXPECT_FALSE(tokenizer->IsSpecial(9707));
  EXPECT_FALSE(tokenizer->IsSpecial(-1));
  EXPECT_EQ(*tokenizer->Decode(ids), "<|im_start|>Hello<think><|im_end|>");
  EXPECT_EQ(*tokenizer->Decode(ids, /*skip_special_tokens=*/true),
            "Hello<think>");
}

}  // namespace
}  // namespace baton::router
