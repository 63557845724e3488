#include "router/text/gguf_splitting.h"

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/json.h"
#include "common/log.h"
#include "router/text/json_node.h"
#include "router/text/pre_tokenizer.h"

namespace baton::router {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// In the byte alphabet: "Ġ" is a space, "Ċ" a line's end.
std::vector<std::string> Words(const std::string& name,
                               const std::string& text) {
  const GgufSplitting* const splitting = FindGgufSplitting(name);
  CHECK(splitting != nullptr) << name;
  const nlohmann::json stages = splitting->PreTokenizerJson();
  const auto splitter = PreTokenizer::FromJson(JsonNode(&stages, "test"));
  CHECK(splitter.ok()) << splitter.status();
  TextPieces pieces;
  pieces.text = text;
  pieces.pieces = {{0, text.size(), true}};
  const absl::Status status = (*splitter)->Apply(&pieces);
  CHECK(status.ok()) << status;
  std::vector<std::string> words;
  for (const TextPieces::Piece& piece : pieces.pieces) {
    words.emplace_back(pieces.View(piece));
  }
  return words;
}

TEST(GgufSplittingTest, Digits) {
  const std::string text = "in 1234";
  EXPECT_THAT(Words("gpt-2", text), ElementsAre("in", "Ġ1234"));
  EXPECT_THAT(Words("llama-bpe", text), ElementsAre("in", "Ġ", "123", "4"));
  EXPECT_THAT(Words("dbrx", text), ElementsAre("in", "Ġ", "123", "4"));
  EXPECT_THAT(Words("deepseek-v3", text), ElementsAre("in", "Ġ", "123", "4"));
  for (const char* const one_by_one :
       {"smollm", "starcoder", "refact", "codeshell", "minerva-7b",
        "deepseek-llm", "deepseek-coder", "seed-coder", "qwen2"}) {
    EXPECT_THAT(Words(one_by_one, text),
                ElementsAre("in", "Ġ", "1", "2", "3", "4"))
        << one_by_one;
  }
}

TEST(GgufSplittingTest, LinesAndPunctuation) {
  const std::string text = "It's (so).\n\n  x";
  EXPECT_THAT(Words("gpt-2", text),
              ElementsAre("It", "'s", "Ġ(", "so", ").", "ĊĊĠ", "Ġx"));
  EXPECT_THAT(Words("smaug-bpe", text),
              ElementsAre("It", "'s", "Ġ(", "so", ").ĊĊ", "Ġ", "Ġx"));
  EXPECT_THAT(Words("deepseek-v3", text),
              ElementsAre("It", "'s", "Ġ(", "so", ").ĊĊ", "Ġ", "Ġx"));
  EXPECT_THAT(Words("seed-coder", text),
              ElementsAre("It", "'s", "Ġ(", "so", ").", "ĊĊ", "Ġ", "Ġx"));
  // Each line's end for itself, and no endings of English.
  for (const char* const name : {"deepseek-llm", "deepseek-coder"}) {
    EXPECT_THAT(Words(name, text), ElementsAre("It", "'", "s", "Ġ(", "so", ").",
                                               "Ċ", "Ċ", "Ġ", "Ġx"))
        << name;
  }
}

// What one calls letters and punctuation the other does not.
TEST(GgufSplittingTest, DeepSeeksDiffer) {
  EXPECT_EQ(Words("deepseek-coder", "a+b").size(), 3u);
  EXPECT_EQ(Words("deepseek-llm", "a+b").size(), 3u);
  // A sum's sign is no \p{P}.
  EXPECT_EQ(Words("deepseek-coder", "++ =").size(), 1u);
  EXPECT_EQ(Words("deepseek-llm", "++ =").size(), 2u);
  // Ideographs stand for themselves in both; Hebrew is a letter to one.
  EXPECT_EQ(Words("deepseek-llm", "a\u4e2d\u6587").size(), 2u);
  EXPECT_EQ(Words("deepseek-coder", "\u05d0 \u05d1").size(), 2u);
  EXPECT_EQ(Words("deepseek-llm", "\u05d0 \u05d1").size(), 1u);
  // The third one takes a sign and the letters behind it for a word, and leaves
  // ideographs and kana to themselves.
  EXPECT_THAT(Words("deepseek-v3", "(so"), ElementsAre("(so"));
  EXPECT_THAT(Words("deepseek-v3", "a\\b"), ElementsAre("a", "\\b"));
  EXPECT_EQ(Words("deepseek-v3", "a\u4e2d\u304b").size(), 2u);
}

// More of it in tiktoken_tokenizer_test.
TEST(GgufSplittingTest, KimisLeavesIdeographsToThemselves) {
  EXPECT_THAT(Words("kimi-k2", "It's (so).\n\n  x12345"),
              ElementsAre("It's", "Ġ(", "so", ").ĊĊ", "Ġ", "Ġx", "123", "45"));
  EXPECT_THAT(Words("kimi-k2", "camelCase ABCdef"),
              ElementsAre("camel", "Case", "ĠABCdef"));
  EXPECT_EQ(Words("kimi-k2", "a\u4e2d\u6587b\u304b").size(), 3u);
  // However long they are.
  EXPECT_EQ(Words("kimi-k2", std::string(3 << 20, 'a')).size(), 1u);
}

TEST(GgufSplittingTest, UnknownNames) {
  EXPECT_EQ(FindGgufSplitting("falcon"), nullptr);
  EXPECT_EQ(FindGgufSplitting(""), nullptr);
  EXPECT_THAT(KnownGgufSplittings(), HasSubstr("llama-bpe, glm4, "));
  EXPECT_THAT(KnownGgufSplittings(), HasSubstr(" and gpt-2"));
}

}  // namespace
}  // namespace baton::router
