// Every part of a tokenizer that Baton knows, against Hugging Face's answers
// (tests/data/tokenizers/variants.json).

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "router/text/detokenizer.h"
#include "router/text/tokenizer.h"
#include "tests/router/text/tokenizer_files.h"

namespace baton::router {
namespace {

using ::testing::ElementsAreArray;

nlohmann::json ReadVariants() {
  std::ifstream in(BATON_SOURCE_DIR "/tests/data/tokenizers/variants.json");
  return nlohmann::json::parse(in);
}

std::string PatchedTokenizer(const nlohmann::json& variant) {
  nlohmann::json json = TokenizerJson(variant["base"]);
  for (const auto& [field, value] : variant["patch"].items()) {
    if (field == "model") {
      json["model"].update(value);
    } else {
      json[field] = value;
    }
  }
  return json.dump();
}

TEST(TokenizerVariantsTest, AnswersAsHuggingFace) {
  const nlohmann::json variants = ReadVariants();
  ASSERT_FALSE(variants.empty());
  for (const nlohmann::json& variant : variants) {
    SCOPED_TRACE(variant["name"].get<std::string>());
    const auto loaded = LoadTokenizerJson(PatchedTokenizer(variant));
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    const Tokenizer& tokenizer = **loaded;
    for (const nlohmann::json& one : variant["encode"]) {
      const auto ids =
          tokenizer.Encode(one["text"].get<std::string>(),
                           {.add_special_tokens = one["add_special_tokens"]});
      ASSERT_TRUE(ids.ok()) << ids.status();
      EXPECT_THAT(*ids,
                  ElementsAreArray(one["ids"].get<std::vector<TokenId>>()))
          << one;
    }
    for (const nlohmann::json& one : variant["decode"]) {
      const auto text = tokenizer.Decode(one["ids"].get<std::vector<TokenId>>(),
                                         one["skip_special_tokens"]);
      ASSERT_TRUE(text.ok()) << text.status();
      EXPECT_EQ(*text, one["text"].get<std::string>()) << one;
    }
  }
}

}  // namespace
}  // namespace baton::router
