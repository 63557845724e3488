#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "absl/strings/str_replace.h"
#include "common/utf8.h"
#include "router/text/detokenizer.h"
#include "router/text/tokenizer.h"
#include "router/text/unicode.h"
#include "tests/router/text/tokenizer_files.h"

namespace baton::router {
namespace {

constexpr int kTexts = 400;

std::string BytesOf(const Tokenizer& tokenizer,
                    const std::vector<TokenId>& ids) {
  std::string bytes;
  for (const TokenId id : ids) bytes += tokenizer.TokenBytes(id);
  return bytes;
}

class ByteLevelRoundTripTest : public ::testing::TestWithParam<const char*> {};

TEST_P(ByteLevelRoundTripTest, KeepsEveryByte) {
  const Tokenizer* const tokenizer = LoadTokenizer(GetParam());
  std::mt19937 random(1);
  for (int i = 0; i < kTexts; ++i) {
    std::string text = RandomBytes(&random, random() % 40);
    if (i % 2 == 0) text.insert(text.size() / 2, RandomText(&random, 10));
    const auto ids = tokenizer->Encode(text, {.add_special_tokens = false});
    ASSERT_TRUE(ids.ok()) << ids.status();
    EXPECT_EQ(BytesOf(*tokenizer, *ids), text);
    EXPECT_EQ(*tokenizer->Decode(*ids), ReplaceIllFormedUtf8(text));
  }
}

TEST_P(ByteLevelRoundTripTest, KeepsEveryText) {
  const Tokenizer* const tokenizer = LoadTokenizer(GetParam());
  std::mt19937 random(2);
  for (int i = 0; i < kTexts; ++i) {
    const std::string text = RandomText(&random, random() % 60);
    const auto ids = tokenizer->Encode(text, {.add_special_tokens = false});
    ASSERT_TRUE(ids.ok()) << ids.status();
    EXPECT_EQ(*tokenizer->Decode(*ids), text);
  }
}

INSTANTIATE_TEST_SUITE_P(Models, ByteLevelRoundTripTest,
                         ::testing::Values("llama-3.1", "stories"),
                         [](const auto& info) {
                           return info.index == 0 ? "llama" : "stories";
                         });

TEST(RoundTripTest, QwenKeepsTextUpToItsNormalForm) {
  const Tokenizer* const tokenizer = LoadTokenizer("qwen3");
  std::mt19937 random(3);
  for (int i = 0; i < kTexts; ++i) {
    const std::string text = RandomText(&random, random() % 60);
    const auto ids = tokenizer->Encode(text);
    ASSERT_TRUE(ids.ok()) << ids.status();
    EXPECT_EQ(*tokenizer->Decode(*ids),
              *NormalizeUnicode(NormalizationForm::kNfc, text));
  }
}

// Broken bytes split the text, and normal forms hold for each part. So bytes
// survive the second time in any case.
TEST(RoundTripTest, QwenKeepsBytesOfNormalizedText) {
  const Tokenizer* const tokenizer = LoadTokenizer("qwen3");
  std::mt19937 random(4);
  for (int i = 0; i < kTexts; ++i) {
    const std::string text =
        RandomText(&random, 5) + RandomBytes(&random, 10) + "e\xCC\x81";
    const std::string once = BytesOf(*tokenizer, *tokenizer->Encode(text));
    const std::string twice = BytesOf(*tokenizer, *tokenizer->Encode(once));
    EXPECT_EQ(once, twice);
    EXPECT_TRUE(once.ends_with("\xC3\xA9"));
  }
}

// Mistral puts a space before a text and takes one away from the front of what
// it decodes; the meta symbol itself comes back as a space.
TEST(RoundTripTest, MistralKeepsText) {
  const Tokenizer* const tokenizer = LoadTokenizer("mistral");
  std::mt19937 random(5);
  for (int i = 0; i < kTexts; ++i) {
    const std::string text = RandomText(&random, random() % 60);
    const auto ids = tokenizer->Encode(text, {.add_special_tokens = false});
    ASSERT_TRUE(ids.ok()) << ids.status();
    EXPECT_EQ(*tokenizer->Decode(*ids),
              absl::StrReplaceAll(text, {{"\xE2\x96\x81", " "}}));
  }
}

TEST(RoundTripTest, MistralSeesBrokenBytesAsReplacementCharacters) {
  const Tokenizer* const tokenizer = LoadTokenizer("mistral");
  EXPECT_EQ(*tokenizer->Encode("a\xFF\xE6\x97z"),
            *tokenizer->Encode("a\xEF\xBF\xBD\xEF\xBF\xBDz"));
}

TEST(RoundTripTest, BrokenBytesDoNotHideSpecialTokens) {
  const Tokenizer* const tokenizer = LoadTokenizer("stories");
  const auto ids =
      tokenizer->Encode("\xFF<|user|>\xC3", {.add_special_tokens = false});
  ASSERT_TRUE(ids.ok());
  ASSERT_EQ(ids->size(), 3u);
  EXPECT_EQ((*ids)[1], 2045);
}

TEST(RoundTripTest, ManyThreadsMayEncode) {
  const Tokenizer* const tokenizer = LoadTokenizer("stories");
  std::mt19937 random(6);
  std::vector<std::string> texts;
  std::vector<std::vector<TokenId>> expected;
  for (int i = 0; i < 50; ++i) {
    texts.push_back(RandomText(&random, 40));
    expected.push_back(*tokenizer->Encode(texts.back()));
  }
  std::vector<std::vector<std::vector<TokenId>>> got(4);
  std::vector<std::thread> threads;
  for (auto& own : got) {
    threads.emplace_back([&] {
      for (const std::string& text : texts) {
        own.push_back(*tokenizer->Encode(text));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& own : got) EXPECT_EQ(own, expected);
}

}  // namespace
}  // namespace baton::router
