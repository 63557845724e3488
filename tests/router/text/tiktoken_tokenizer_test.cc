// Directories with tiktoken.model, as Kimi K2 and Moonlight have it, against
// the algorithm in tests/data/tokenizers/make_kimi.py, and a large vocabulary
// against the merges that Hugging Face made of the same.
#include "router/text/tiktoken_tokenizer.h"

#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "router/text/byte_alphabet.h"
#include "router/text/json_node.h"
#include "router/text/tokenizer.h"
#include "tests/router/text/tokenizer_files.h"

namespace baton::router::tiktoken_tokenizer_test {
namespace {

using nlohmann::json;
using ::testing::ElementsAreArray;
using ::testing::HasSubstr;
using ::testing::Optional;

constexpr char kModel[] = "tiktoken.model";
constexpr char kConfig[] = "tokenizer_config.json";

std::string KimiFile(const std::string& file) {
  return *ReadSmallFile(absl::StrCat(TokenizerDir("kimi"), "/", file), 1 << 20);
}

std::unique_ptr<Tokenizer> Kimi() {
  auto tokenizer = Tokenizer::Load(TokenizerDir("kimi"));
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return tokenizer.ok() ? *std::move(tokenizer) : nullptr;
}

TEST(TiktokenTokenizerTest, EncodesAsTiktoken) {
  const auto tokenizer = Kimi();
  ASSERT_NE(tokenizer, nullptr);
  const json expected = TokenizerJson("kimi", "expected.json");
  ASSERT_GT(expected.size(), 100);
  for (const json& one : expected) {
    const std::string text = one["text"];
    const auto ids = tokenizer->Encode(text);
    ASSERT_TRUE(ids.ok()) << ids.status();
    EXPECT_THAT(*ids, ElementsAreArray(one["ids"].get<std::vector<TokenId>>()))
        << text;
    EXPECT_EQ(*tokenizer->Decode(*ids), text);
  }
}

TEST(TiktokenTokenizerTest, ReadsWhatIsSaidOfSpecialTokens) {
  const auto tokenizer = Kimi();
  ASSERT_NE(tokenizer, nullptr);
  const TokenId base = 956;
  EXPECT_EQ(tokenizer->vocab_size(), base + 256);
  EXPECT_THAT(tokenizer->bos_id(), Optional(base));
  EXPECT_THAT(tokenizer->eos_id(), Optional(base + 1));
  EXPECT_THAT(tokenizer->IdOf("<|tool_calls_section_begin|>"),
              Optional(base + 11));
  EXPECT_FALSE(tokenizer->IsSpecial(base + 11));
  EXPECT_THAT(tokenizer->IdOf("<|reserved_token_966|>"), Optional(base + 10));
  EXPECT_TRUE(tokenizer->IsSpecial(base + 10));
  EXPECT_THAT(tokenizer->IdOf("[PAD]"), Optional(base + 255));
  const auto text = tokenizer->Encode("[BOS]", {.parse_special = false});
  ASSERT_TRUE(text.ok());
  EXPECT_GT(text->size(), 1);
}

// Llama 3's vocabulary is one of tiktoken's. Words that both split alike.
TEST(TiktokenTokenizerTest, ALargeVocabularyIsThatOfItsTokenizerJson) {
  const json llama = TokenizerJson("llama-3.1");
  std::string lines;
  size_t count = 0;
  for (const auto& [token, rank] : llama["model"]["vocab"].items()) {
    std::string bytes;
    AppendByteLevelToken(token, &bytes);
    absl::StrAppend(&lines, absl::Base64Escape(bytes), " ", rank.get<int>(),
                    "\n");
    ++count;
  }
  ASSERT_EQ(count, 128000);
  const ModelDir dir;
  dir.Write(kModel, lines);
  dir.Write(kConfig, R"({"tokenizer_class": "TikTokenTokenizer"})");
  const auto tokenizer = Tokenizer::Load(dir.path());
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  const Tokenizer& expected = *LoadTokenizer("llama-3.1");
  EXPECT_EQ((*tokenizer)->vocab_size(), expected.vocab_size());
  std::mt19937 random(17);
  const std::vector<std::string> letters = {"a", "e", "i", "o", "t", "n", "s",
                                            "r", "l", "é", "ß", "д", "о", "и"};
  for (int i = 0; i < 20'000; ++i) {
    std::string word = i % 3 == 0 ? "" : " ";
    for (size_t left = 1 + random() % 14; left > 0; --left) {
      word += letters[random() % letters.size()];
    }
    const auto ids = (*tokenizer)->Encode(word);
    const auto others = expected.Encode(word, {.add_special_tokens = false});
    ASSERT_TRUE(ids.ok() && others.ok());
    ASSERT_EQ(*ids, *others) << word;
  }
}

// How loading ends when a file is another.
absl::Status LoadWith(const std::string& file, const std::string& text) {
  const ModelDir dir;
  for (const char* const name : {kModel, kConfig}) {
    dir.Write(name, file == name ? text : KimiFile(name));
  }
  return Tokenizer::Load(dir.path()).status();
}

TEST(TiktokenTokenizerTest, SaysWhatIsWrongWithAFile) {
  const std::string good = KimiFile(kModel);
  const size_t line = good.find('\n') + 1;
  const std::string first = good.substr(0, line);
  const struct {
    std::string text;
    std::string message;
  } cases[] = {
      {"", "tiktoken.model: has no token of rank 0"},
      {first + "AA== 2\n", "has no token of rank 1"},
      {first + "AA== 0\n", "line 2 has rank 0, as line 1 does"},
      {first + first.substr(0, first.find(' ')) + " 1\n",
       "line 2 has a token that was there before"},
      {first + "A=A 1\n", "line 2 is not a token in base64 and its rank"},
      {first + "AA==\n", "line 2 is not"},
      {first + " 1\n", "line 2 is not"},
      {first + "AA== -1\n", "line 2 is not"},
      {first + "AA== 1 1\n", "line 2 is not"},
      {first + "AA== 4194304\n", "has rank 4194304, the largest is 4194303"},
  };
  for (const auto& [text, message] : cases) {
    const absl::Status status = LoadWith(kModel, text);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(message));
  }
  EXPECT_TRUE(LoadWith(kModel, good).ok());
}

TEST(TiktokenTokenizerTest, SaysWhatIsWrongWithItsSettings) {
  const auto said = [](const std::function<void(json&)>& change,
                       absl::StatusCode code) {
    json config = json::parse(KimiFile(kConfig));
    change(config);
    const absl::Status status = LoadWith(kConfig, config.dump());
    EXPECT_EQ(status.code(), code) << status;
    return std::string(status.message());
  };
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  // Which may split texts in another way.
  EXPECT_THAT(said([](json& c) { c["tokenizer_class"] = "QWenTokenizer"; },
                   absl::StatusCode::kUnimplemented),
              HasSubstr("tokenizer_class is \"QWenTokenizer\""));
  EXPECT_THAT(said([](json& c) { c.erase("tokenizer_class"); }, kInvalid),
              HasSubstr("tokenizer_class"));
  EXPECT_THAT(
      said([](json& c) { c["added_tokens_decoder"]["3"] = json::object(); },
           kInvalid),
      HasSubstr("is not a token behind the vocabulary, which has 956"));
  EXPECT_THAT(said([](json& c) { c["added_tokens_decoder"] = 3; }, kInvalid),
              HasSubstr("added_tokens_decoder is not an object"));
  EXPECT_THAT(
      said([](json& c) { c["added_tokens_decoder"]["956"].erase("content"); },
           kInvalid),
      HasSubstr("content"));
  // Two that no model has.
  said(
      [](json& c) {
        c["added_tokens_decoder"]["1213"] = {{"content", "[EXTRA]"}};
      },
      absl::StatusCode::kOk);
  const ModelDir dir;
  dir.Write(kModel, KimiFile(kModel));
  const absl::Status without = Tokenizer::Load(dir.path()).status();
  EXPECT_EQ(without.code(), kInvalid);
  EXPECT_THAT(std::string(without.message()),
              HasSubstr("tokenizer_config.json is not there"));
}

}  // namespace
}  // namespace baton::router::tiktoken_tokenizer_test
