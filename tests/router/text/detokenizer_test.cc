#include "router/text/detokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/utf8.h"
#include "tests/router/text/tokenizer_files.h"

namespace baton::router {
namespace {

using ::testing::ElementsAre;

std::vector<std::string> Stream(const Tokenizer& tokenizer,
                                const std::vector<TokenId>& ids,
                                bool skip_special_tokens = false) {
  Detokenizer detokenizer(tokenizer, skip_special_tokens);
  std::vector<std::string> pieces;
  for (const TokenId id : ids) pieces.push_back(detokenizer.Push(id));
  pieces.push_back(detokenizer.Finish());
  return pieces;
}

// The tokens <0x00> to <0xFF> of Mistral and its small cousin.
std::vector<TokenId> ByteTokens(const std::string& bytes) {
  std::vector<TokenId> ids;
  for (const char c : bytes) ids.push_back(3 + static_cast<uint8_t>(c));
  return ids;
}

class StreamingTest : public ::testing::TestWithParam<const char*> {};

TEST_P(StreamingTest, PiecesAreValidAndMakeUpTheWhole) {
  const Tokenizer* const tokenizer = LoadTokenizer(GetParam());
  std::mt19937 random(7);
  const int64_t vocab_size = tokenizer->vocab_size();
  for (int round = 0; round < 2000; ++round) {
    const bool skip_special_tokens = round % 2 == 0;
    std::vector<TokenId> ids;
    while (random() % 16 != 0) {
      // Low ids are single bytes in all four vocabularies.
      const int64_t limit = random() % 2 == 0 ? 260 : vocab_size;
      ids.push_back(static_cast<TokenId>(random() % limit));
      if (random() % 8 == 0) {
        const auto text = tokenizer->Encode(RandomText(&random, 2));
        ids.insert(ids.end(), text->begin(), text->end());
      }
    }
    std::string all;
    for (const std::string& piece :
         Stream(*tokenizer, ids, skip_special_tokens)) {
      ASSERT_TRUE(IsValidUtf8(piece));
      all += piece;
    }
    ASSERT_EQ(all, *tokenizer->Decode(ids, skip_special_tokens));
  }
}

INSTANTIATE_TEST_SUITE_P(Models, StreamingTest,
                         ::testing::Values("llama-3.1", "mistral", "qwen3",
                                           "stories", "spiece"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::erase_if(name,
                                         [](char c) { return !isalnum(c); });
                           return name;
                         });

TEST(DetokenizerTest, HalfACharacterWaits) {
  const Tokenizer* const tokenizer = LoadTokenizer("stories");
  const auto ids = tokenizer->Encode(
      "a\xE6\x97\xA5"
      "b",
      {.add_special_tokens = false});
  ASSERT_EQ(ids->size(), 5u);
  EXPECT_THAT(Stream(*tokenizer, *ids),
              ElementsAre("a", "", "", "\xE6\x97\xA5", "b", ""));
}

TEST(DetokenizerTest, ACutOffCharacterIsOneReplacement) {
  const Tokenizer* const tokenizer = LoadTokenizer("stories");
  const auto ids =
      tokenizer->Encode("a\xE6\x97", {.add_special_tokens = false});
  ASSERT_EQ(ids->size(), 3u);
  EXPECT_THAT(Stream(*tokenizer, *ids),
              ElementsAre("a", "", "", "\xEF\xBF\xBD"));
}

TEST(DetokenizerTest, BytesAfterACutOffCharacterStand) {
  const Tokenizer* const tokenizer = LoadTokenizer("stories");
  const auto ids =
      tokenizer->Encode("\xE6\x97z", {.add_special_tokens = false});
  ASSERT_EQ(ids->size(), 3u);
  EXPECT_THAT(Stream(*tokenizer, *ids),
              ElementsAre("", "", "\xEF\xBF\xBDz", ""));
}

TEST(DetokenizerTest, ARunOfByteTokensWaitsForItsEnd) {
  const Tokenizer* const tokenizer = LoadTokenizer("mistral");
  std::vector<TokenId> ids = ByteTokens("\xE6\x97\xA5");
  ids.push_back(*tokenizer->IdOf("a"));
  EXPECT_THAT(Stream(*tokenizer, ids), ElementsAre("", "", "",
                                                   "\xE6\x97\xA5"
                                                   "a",
                                                   ""));
  ids.pop_back();
  EXPECT_THAT(Stream(*tokenizer, ids), ElementsAre("", "", "", "\xE6\x97\xA5"));
}

TEST(DetokenizerTest, ABrokenRunOfByteTokensIsAReplacementPerByte) {
  const Tokenizer* const tokenizer = LoadTokenizer("mistral");
  const std::string replacement(kReplacementCharacter);
  EXPECT_THAT(Stream(*tokenizer, ByteTokens("\xE6\x97\xA5\xFF"
                                            "A")),
              ElementsAre("", "", "",
                          replacement + replacement + replacement + replacement,
                          replacement, ""));
}

TEST(DetokenizerTest, OnlyTheFirstSpaceOfASequenceIsDropped) {
  const Tokenizer* const tokenizer = LoadTokenizer("mistral");
  const auto ids =
      tokenizer->Encode("Hello world", {.add_special_tokens = false});
  EXPECT_THAT(Stream(*tokenizer, *ids), ElementsAre("Hello", " world", ""));
  const auto spaces =
      tokenizer->Encode("  Hello", {.add_special_tokens = false});
  EXPECT_EQ(*tokenizer->Decode(*spaces), "  Hello");
}

TEST(DetokenizerTest, LeavesOutSpecialTokens) {
  const Tokenizer* const tokenizer = LoadTokenizer("mistral");
  const auto ids = tokenizer->Encode("Hello world");
  EXPECT_THAT(Stream(*tokenizer, *ids, /*skip_special_tokens=*/true),
              ElementsAre("", "Hello", " world", ""));
  EXPECT_THAT(Stream(*tokenizer, *ids),
              ElementsAre("<s>", " Hello", " world", ""));
}

TEST(DetokenizerTest, IdsOutsideTheVocabularyAreNothing) {
  const Tokenizer* const tokenizer = LoadTokenizer("stories");
  EXPECT_THAT(Stream(*tokenizer, {-1, 2048, 1 << 30}),
              ElementsAre("", "", "", ""));
}

}  // namespace
}  // namespace baton::router
