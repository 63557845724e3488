#include "router/text/bpe_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/log.h"
#include "tests/router/text/tokenizer_files.h"

namespace baton::router {
namespace {

using ::testing::ElementsAre;
using ::testing::ElementsAreArray;

BpeModel ModelOf(const nlohmann::json& json) {
  absl::StatusOr<BpeModel> model =
      BpeModel::FromJson(JsonNode(&json, "test.json"));
  CHECK(model.ok()) << model.status();
  return *std::move(model);
}

std::vector<TokenId> Encode(const BpeModel& model, const std::string& word) {
  std::vector<TokenId> ids;
  const absl::Status status = model.Encode(word, &ids);
  EXPECT_TRUE(status.ok()) << status;
  return ids;
}

// The definition: join the leftmost pair of the lowest rank until there is
// none.
std::vector<TokenId> MergeByDefinition(const nlohmann::json& json,
                                       const std::string& word) {
  std::map<std::pair<std::string, std::string>, int> ranks;
  for (const std::string merge : json["merges"]) {
    const size_t space = merge.find(' ');
    ranks.try_emplace({merge.substr(0, space), merge.substr(space + 1)},
                      static_cast<int>(ranks.size()));
  }
  std::vector<std::string> symbols;
  for (const char c : word) symbols.push_back(std::string(1, c));
  while (true) {
    int best_rank = static_cast<int>(ranks.size());
    size_t best = 0;
    for (size_t i = 0; i + 1 < symbols.size(); ++i) {
      const auto it = ranks.find({symbols[i], symbols[i + 1]});
      if (it != ranks.end() && it->second < best_rank) {
        best_rank = it->second;
        best = i;
      }
    }
    if (best_rank == static_cast<int>(ranks.size())) break;
    symbols[best] += symbols[best + 1];
    symbols.erase(symbols.begin() + static_cast<long>(best) + 1);
  }
  std::vector<TokenId> ids;
  for (const std::string& symbol : symbols) {
    ids.push_back(json["vocab"][symbol]);
  }
  return ids;
}

TEST(BpeModelTest, MergesByRankWhateverTheLength) {
  const nlohmann::json json = TokenizerJson("stories")["model"];
  const BpeModel model = ModelOf(json);
  std::mt19937 random(10);
  for (int round = 0; round < 400; ++round) {
    std::string word;
    const size_t size = 1 + random() % 100;
    while (word.size() < size) word.push_back("aehilnorst"[random() % 10]);
    ASSERT_THAT(Encode(model, word),
                ElementsAreArray(MergeByDefinition(json, word)))
        << word;
  }
}

TEST(BpeModelTest, LongWordsAreNotQuadratic) {
  const BpeModel model = ModelOf(TokenizerJson("llama-3.1")["model"]);
  const auto seconds = [&](const std::string& word) {
    const absl::Time start = absl::Now();
    EXPECT_FALSE(Encode(model, word).empty());
    return absl::ToDoubleSeconds(absl::Now() - start);
  };
  std::mt19937 random(11);
  std::string word;
  while (word.size() < 500'000) word.push_back("abcde"[random() % 5]);
  // A quadratic merge would take many minutes.
  EXPECT_LT(seconds(word), 60);
  EXPECT_LT(seconds(std::string(500'000, 'x')), 60);
}

TEST(BpeModelTest, UnknownCharacters) {
  nlohmann::json json = {{"type", "BPE"},
                         {"vocab", {{"<unk>", 0}, {"a", 1}}},
                         {"merges", nlohmann::json::array()},
                         {"unk_token", "<unk>"}};
  EXPECT_THAT(Encode(ModelOf(json), "a??a"), ElementsAre(1, 0, 0, 1));
  json["fuse_unk"] = true;
  EXPECT_THAT(Encode(ModelOf(json), "a??a"), ElementsAre(1, 0, 1));
  json["unk_token"] = nullptr;
  EXPECT_THAT(Encode(ModelOf(json), "a??a"), ElementsAre(1, 1));
  json["unk_token"] = "nobody";
  std::vector<TokenId> ids;
  EXPECT_EQ(ModelOf(json).Encode("a?", &ids).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(ModelOf(json).Encode("a", &ids).ok());
}

TEST(BpeModelTest, IgnoreMergesTakesWholeWords) {
  nlohmann::json json = {{"type", "BPE"},
                         {"vocab", {{"a", 0}, {"b", 1}, {"ab", 2}}},
                         {"merges", nlohmann::json::array()}};
  EXPECT_THAT(Encode(ModelOf(json), "ab"), ElementsAre(0, 1));
  json["ignore_merges"] = true;
  EXPECT_THAT(Encode(ModelOf(json), "ab"), ElementsAre(2));
}

TEST(BpeModelTest, MergesMayBePairs) {
  const nlohmann::json json = {{"type", "BPE"},
                               {"vocab", {{"a", 0}, {" ", 1}, {"a ", 2}}},
                               {"merges", nlohmann::json::array({{"a", " "}})}};
  EXPECT_THAT(Encode(ModelOf(json), "a a"), ElementsAre(2, 0));
}

}  // namespace
}  // namespace baton::router
