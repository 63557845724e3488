#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "router/text/tokenizer.h"
#include "tests/router/text/tokenizer_files.h"

namespace baton::router {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Optional;

// How loading ends for the demo tokenizer with `change` made to it.
absl::Status LoadChanged(const std::function<void(nlohmann::json&)>& change) {
  nlohmann::json json = TokenizerJson("stories");
  change(json);
  return LoadTokenizerJson(json.dump()).status();
}

void ExpectInvalid(const absl::Status& status, const std::string& what) {
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("/tokenizer.json"), HasSubstr(what)));
}

void ExpectUnimplemented(const absl::Status& status, const std::string& what) {
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented) << status;
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("/tokenizer.json"), HasSubstr(what)));
}

TEST(TokenizerLoadTest, MissingFile) {
  const ModelDir dir;
  const absl::Status status = Tokenizer::Load(dir.path()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), HasSubstr("/tokenizer.json"));
}

TEST(TokenizerLoadTest, ADirectoryInPlaceOfTheFile) {
  const ModelDir dir;
  std::filesystem::create_directory(dir.path() + "/tokenizer.json");
  EXPECT_FALSE(Tokenizer::Load(dir.path()).ok());
}

TEST(TokenizerLoadTest, TruncatedFile) {
  const std::string whole = TokenizerJson("stories").dump();
  for (const size_t size :
       {size_t{0}, size_t{1}, whole.size() / 2, whole.size() - 1}) {
    ExpectInvalid(LoadTokenizerJson(whole.substr(0, size)).status(),
                  "not valid JSON");
  }
}

TEST(TokenizerLoadTest, BrokenJson) {
  ExpectInvalid(LoadTokenizerJson("{\"model\": nil}").status(),
                "not valid JSON");
  ExpectInvalid(LoadTokenizerJson("[]").status(), "is not an object");
  ExpectInvalid(LoadTokenizerJson("{\"a\": \"\xFF\"}").status(),
                "not valid JSON");
}

TEST(TokenizerLoadTest, DeeplyNestedJson) {
  const std::string deep = std::string(1 << 20, '[');
  ExpectInvalid(LoadTokenizerJson(deep).status(), "nested deeper");
  ExpectInvalid(LoadTokenizerJson(std::string(1 << 20, '{')).status(),
                "nested deeper");
}

TEST(TokenizerLoadTest, UnknownParts) {
  ExpectUnimplemented(LoadChanged([](auto& j) { j["model"]["type"] = "Foo"; }),
                      "model.type is \"Foo\", which is not supported");
  ExpectUnimplemented(
      LoadChanged([](auto& j) { j["normalizer"]["type"] = "Foo"; }),
      "normalizer.type is \"Foo\"");
  ExpectUnimplemented(LoadChanged([](auto& j) {
                        j["pre_tokenizer"]["pretokenizers"][1]["type"] = "Foo";
                      }),
                      "pre_tokenizer.pretokenizers[1].type is \"Foo\"");
  ExpectUnimplemented(
      LoadChanged([](auto& j) { j["post_processor"]["type"] = "Foo"; }),
      "post_processor.type is \"Foo\"");
  ExpectUnimplemented(
      LoadChanged([](auto& j) { j["decoder"]["type"] = "Foo"; }),
      "decoder.type is \"Foo\"");
  ExpectUnimplemented(LoadChanged([](auto& j) { j["model"]["dropout"] = 0.1; }),
                      "model.dropout is 0.1");
  ExpectUnimplemented(LoadChanged([](auto& j) { j["version"] = "2.0"; }),
                      "version is \"2.0\"");
}

TEST(TokenizerLoadTest, WrongFields) {
  ExpectInvalid(LoadChanged([](auto& j) { j.erase("model"); }),
                "has no field \"model\"");
  ExpectInvalid(LoadChanged([](auto& j) { j["model"].erase("vocab"); }),
                "model has no field \"vocab\"");
  ExpectInvalid(LoadChanged([](auto& j) { j["model"]["vocab"]["a"] = -1; }),
                "model.vocab has a bad id for the token \"a\"");
  ExpectInvalid(
      LoadChanged([](auto& j) { j["model"]["vocab"]["a"] = 4000000000u; }),
      "model.vocab has a bad id for the token \"a\"");
  ExpectInvalid(LoadChanged([](auto& j) {
                  j["model"]["vocab"]["a"] = j["model"]["vocab"]["b"];
                }),
                "model.vocab gives two tokens the id");
  ExpectInvalid(LoadChanged([](auto& j) { j["added_tokens"][0]["id"] = "x"; }),
                "added_tokens[0].id is \"x\"");
  ExpectInvalid(LoadChanged([](auto& j) { j["decoder"] = "ByteLevel"; }),
                "decoder is not an object");
}

TEST(TokenizerLoadTest, MergesOfUnknownTokens) {
  ExpectInvalid(LoadChanged([](auto& j) {
                  j["model"]["merges"].push_back("h \xC4\x80q");
                }),
                "\"\xC4\x80q\" is not in the vocabulary");
  ExpectInvalid(
      LoadChanged([](auto& j) { j["model"]["merges"].push_back("q q"); }),
      "\"qq\" is not in the vocabulary");
  ExpectInvalid(
      LoadChanged([](auto& j) { j["model"]["merges"].push_back("a b c"); }),
      "not a pair");
  ExpectInvalid(
      LoadChanged([](auto& j) {
        j["model"]["merges"].push_back(nlohmann::json::array({"a", 1}));
      }),
      "not a pair of strings");
}

TEST(TokenizerLoadTest, RegularExpressionsItDoesNotKnow) {
  const auto with = [](const std::string& regex) {
    return LoadChanged([&](auto& j) {
      j["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = regex;
    });
  };
  const std::string place = "pre_tokenizer.pretokenizers[0].pattern.Regex";
  ExpectUnimplemented(with("[a&&b]"), place);
  ExpectUnimplemented(with("(?<name>a)"), place);
  ExpectInvalid(with("(a"), place);
  ExpectInvalid(with("*a"), place);
}

TEST(TokenizerLoadTest, IdsOutOfRange) {
  const Tokenizer* const tokenizer = LoadTokenizer("stories");
  for (const TokenId id : {-1, 2048, 1 << 30}) {
    const std::vector<TokenId> ids = {id};
    EXPECT_EQ(tokenizer->Decode(ids).status().code(),
              absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(tokenizer->TokenBytes(id), "");
  }
  EXPECT_EQ(*tokenizer->Decode({}), "");
}

class TokenizerConfigTest : public ::testing::Test {
 protected:
  TokenizerConfigTest() {
    dir_.Write("tokenizer.json", TokenizerJson("stories").dump());
  }

  ModelDir dir_;
};

TEST_F(TokenizerConfigTest, IsOptional) {
  const auto tokenizer = Tokenizer::Load(dir_.path());
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_EQ((*tokenizer)->bos_id(), std::nullopt);
  EXPECT_EQ((*tokenizer)->eos_id(), std::nullopt);
  EXPECT_EQ((*tokenizer)->chat_template(), std::nullopt);
}

TEST_F(TokenizerConfigTest, TokensMayBeObjects) {
  dir_.Write("tokenizer_config.json",
             R"({"bos_token": {"content": "<|bos|>"}, "eos_token": null})");
  const auto tokenizer = Tokenizer::Load(dir_.path());
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_THAT((*tokenizer)->bos_id(), Optional(2043));
  EXPECT_EQ((*tokenizer)->eos_id(), std::nullopt);
}

// As transformers has it, of files whose tokenizer.json adds nothing.
TEST_F(TokenizerConfigTest, OneClassAddsBosWhereTheFileSaysSo) {
  nlohmann::json json = TokenizerJson("stories");
  json["post_processor"] = {{"type", "ByteLevel"}};
  dir_.Write("tokenizer.json", json.dump());
  const auto first = [&](const std::string& config) {
    dir_.Write("tokenizer_config.json", config);
    const auto tokenizer = Tokenizer::Load(dir_.path());
    EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
    EXPECT_NE(
        (*tokenizer)->Encode("Once", {.add_special_tokens = false})->front(),
        2043);
    return (*tokenizer)->Encode("Once")->front();
  };
  EXPECT_EQ(first(R"({"bos_token": "<|bos|>", "add_bos_token": true,
                      "tokenizer_class": "LlamaTokenizerFast"})"),
            2043);
  for (const char* const config :
       {R"({"bos_token": "<|bos|>", "add_bos_token": false,
            "tokenizer_class": "LlamaTokenizerFast"})",
        R"({"bos_token": "<|bos|>", "tokenizer_class": "LlamaTokenizer"})",
        R"({"bos_token": "<|bos|>", "add_bos_token": true,
            "tokenizer_class": "Qwen2Tokenizer"})",
        R"({"add_bos_token": true, "tokenizer_class": "LlamaTokenizer"})"}) {
    EXPECT_NE(first(config), 2043) << config;
  }
}

// Not twice.
TEST_F(TokenizerConfigTest, AddsNoBosBesideATemplate) {
  nlohmann::json json = TokenizerJson("stories");
  json["post_processor"] = {
      {"type", "TemplateProcessing"},
      {"single",
       {{{"SpecialToken", {{"id", "<|bos|>"}, {"type_id", 0}}}},
        {{"Sequence", {{"id", "A"}, {"type_id", 0}}}}}},
      {"special_tokens",
       {{"<|bos|>",
         {{"id", "<|bos|>"}, {"ids", {2043}}, {"tokens", {"<|bos|>"}}}}}}};
  dir_.Write("tokenizer.json", json.dump());
  dir_.Write("tokenizer_config.json",
             R"({"bos_token": "<|bos|>", "add_bos_token": true,
                 "tokenizer_class": "LlamaTokenizer"})");
  const auto tokenizer = Tokenizer::Load(dir_.path());
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  const std::vector<TokenId> ids = *(*tokenizer)->Encode("Once");
  EXPECT_EQ(std::count(ids.begin(), ids.end(), 2043), 1);
}

TEST_F(TokenizerConfigTest, TakesTheDefaultOfSeveralTemplates) {
  dir_.Write("tokenizer_config.json",
             R"({"chat_template": [{"name": "tools", "template": "t"},
                                   {"name": "default", "template": "d"}]})");
  EXPECT_THAT((*Tokenizer::Load(dir_.path()))->chat_template(),
              Optional(std::string("d")));
}

TEST_F(TokenizerConfigTest, TheTemplatesOwnFileHolds) {
  dir_.Write("tokenizer_config.json", R"({"chat_template": "old"})");
  dir_.Write("chat_template.jinja", "new");
  EXPECT_THAT((*Tokenizer::Load(dir_.path()))->chat_template(),
              Optional(std::string("new")));
}

TEST_F(TokenizerConfigTest, BrokenOnesAreErrors) {
  for (const char* const config :
       {"{", R"({"bos_token": "nobody"})", R"({"bos_token": 1})",
        R"({"add_bos_token": "yes"})", R"({"chat_template": []})",
        R"({"chat_template": 1})"}) {
    dir_.Write("tokenizer_config.json", config);
    const absl::Status status = Tokenizer::Load(dir_.path()).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << config;
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("/tokenizer_config.json"));
  }
}

}  // namespace
}  // namespace baton::router
