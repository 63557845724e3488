// Whatever is in tokenizer.json, loading and using it ends in a Status.

#include <gtest/gtest.h>

#include "common/utf8.h"
#include "router/text/detokenizer.h"
#include "router/text/tokenizer.h"
#include "tests/router/text/tokenizer_files.h"

namespace baton::router {
namespace {

void Use(const Tokenizer& tokenizer, std::mt19937* random) {
  const std::string text =
      "Hello  world <|bos|> 123\n'll " + RandomText(random, 20);
  const auto ids = tokenizer.Encode(text);
  if (!ids.ok()) return;
  std::string streamed;
  Detokenizer detokenizer(tokenizer, /*skip_special_tokens=*/false);
  for (const TokenId id : *ids) streamed += detokenizer.Push(id);
  streamed += detokenizer.Finish();
  EXPECT_TRUE(IsValidUtf8(streamed));
  const auto decoded = tokenizer.Decode(*ids);
  // A post-processor may add ids that the vocabulary lacks.
  if (decoded.ok()) {
    EXPECT_EQ(*decoded, streamed);
  }
  for (const TokenId id : *ids) tokenizer.TokenBytes(id);
}

void TryLoad(const std::string& bytes, std::mt19937* random, int* loaded) {
  const auto tokenizer = LoadTokenizerJson(bytes);
  if (!tokenizer.ok()) {
    EXPECT_FALSE(tokenizer.status().message().empty());
    return;
  }
  ++*loaded;
  Use(**tokenizer, random);
}

// A place in a document, chosen at random, not too often inside the large
// vocabulary and merges.
nlohmann::json* RandomPlace(nlohmann::json* root, std::mt19937* random) {
  nlohmann::json* place = root;
  while (place->is_structured() && !place->empty() && (*random)() % 6 != 0) {
    place = &*std::next(place->begin(), (*random)() % place->size());
  }
  return place;
}

nlohmann::json RandomValue(const nlohmann::json& root, std::mt19937* random) {
  static const std::vector<nlohmann::json> values = {
      nullptr,
      true,
      false,
      0,
      1,
      -1,
      2048,
      1u << 31,
      1e300,
      "",
      "a",
      " ",
      "\xE2\x96\x81",
      "BPE",
      "Metaspace",
      "Split",
      "Sequence",
      "ByteLevel",
      "Digits",
      "Punctuation",
      "Whitespace",
      "NFC",
      "Strip",
      "Replace",
      "Prepend",
      "Fuse",
      "ByteFallback",
      "TemplateProcessing",
      "(a+)+$",
      "[^\\s]+|",
      "Removed",
      "MergedWithNext",
      "first",
      "never",
      nlohmann::json::array(),
      nlohmann::json::object(),
      nlohmann::json::array({"a", "b"}),
      {{"type", "Fuse"}},
      {{"String", "e"}},
      {{"Regex", "\\w*"}}};
  if ((*random)() % 4 == 0) {
    nlohmann::json copy = root;
    copy.erase("model");
    return *RandomPlace(&copy, random);
  }
  return values[(*random)() % values.size()];
}

TEST(TokenizerFuzzTest, MutatedValues) {
  for (const char* const name : {"stories", "spiece"}) {
    const nlohmann::json original = TokenizerJson(name);
    std::mt19937 random(8);
    int loaded = 0;
    for (int round = 0; round < 400; ++round) {
      nlohmann::json json = original;
      // Smaller documents make the interesting fields likelier.
      if (random() % 2 == 0) json["model"]["merges"] = nlohmann::json::array();
      const int changes = 1 + static_cast<int>(random() % 3);
      for (int i = 0; i < changes; ++i) {
        nlohmann::json value = RandomValue(original, &random);
        *RandomPlace(&json, &random) = std::move(value);
      }
      TryLoad(json.dump(), &random, &loaded);
    }
    EXPECT_GT(loaded, 0);
    EXPECT_LT(loaded, 400);
  }
}

TEST(TokenizerFuzzTest, MutatedBytes) {
  const std::string original = TokenizerJson("stories").dump();
  std::mt19937 random(9);
  int loaded = 0;
  for (int round = 0; round < 400; ++round) {
    std::string bytes = original;
    const int changes = 1 + static_cast<int>(random() % 4);
    for (int i = 0; i < changes; ++i) {
      const size_t at = random() % bytes.size();
      switch (random() % 4) {
        case 0:
          bytes[at] = static_cast<char>(random());
          break;
        case 1:
          bytes[at] = "[]{}\",:\\01e-"[random() % 12];
          break;
        case 2:
          bytes.erase(at, random() % 64);
          break;
        default:
          bytes.insert(at, bytes.substr(random() % bytes.size(), 40));
          break;
      }
    }
    TryLoad(bytes, &random, &loaded);
  }
  EXPECT_LT(loaded, 400);
}

}  // namespace
}  // namespace baton::router
