// Tokenizers read from GGUF metadata against those read from tokenizer.json:
// each tokenizer of the repository, written as GGUF, must give the same ids.
#include "router/text/gguf_tokenizer.h"

#include <functional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/log.h"
#include "tests/engine/mutation.h"
#include "tests/router/text/tokenizer_files.h"
#include "tests/support/gguf_writer.h"

namespace baton::router {
namespace {

using nlohmann::json;
using test::GgufWriter;
using testing::AllOf;
using testing::ElementsAre;
using testing::ElementsAreArray;
using testing::HasSubstr;
using testing::Optional;

GgufWriter WriteGguf(const json& root, const std::string& pre) {
  GgufWriter writer;
  test::AddGgufTokenizer(root, pre, writer);
  return writer;
}

absl::StatusOr<std::unique_ptr<Tokenizer>> Load(const GgufWriter& writer) {
  ModelDir dir;
  dir.Write("m.gguf", writer.Finish());
  return Tokenizer::Load(dir.path() + "/m.gguf");
}

struct Case {
  const char* name;
  const char* pre;
};

class GgufTokenizerTest : public testing::TestWithParam<Case> {};

INSTANTIATE_TEST_SUITE_P(
    Models, GgufTokenizerTest,
    testing::Values(Case{"llama-3.1", "llama-bpe"}, Case{"qwen3", "qwen2"},
                    Case{"stories", "llama-bpe"}, Case{"mistral", ""}),
    [](const auto& info) {
      std::string name = info.param.name;
      std::erase_if(name, [](char c) { return !isalnum(c); });
      return name;
    });

TEST_P(GgufTokenizerTest, GivesTheIdsOfHuggingFace) {
  const auto loaded =
      Load(WriteGguf(TokenizerJson(GetParam().name), GetParam().pre));
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  const Tokenizer& tokenizer = **loaded;
  const Tokenizer& original = *LoadTokenizer(GetParam().name);
  EXPECT_EQ(tokenizer.vocab_size(), original.vocab_size());
  for (const json& one : TokenizerJson(GetParam().name, "expected.json")) {
    const std::string text = one["text"];
    const auto ids = tokenizer.Encode(text, {.add_special_tokens = false});
    ASSERT_TRUE(ids.ok()) << ids.status();
    EXPECT_THAT(*ids, ElementsAreArray(one["ids"].get<std::vector<TokenId>>()))
        << text;
    EXPECT_EQ(*tokenizer.Decode(*ids), *original.Decode(*ids)) << text;
  }
  std::mt19937 random(1);
  for (int i = 0; i < 300; ++i) {
    const std::string text = RandomText(&random, 1 + random() % 60);
    const auto ids = tokenizer.Encode(text, {.add_special_tokens = false});
    ASSERT_TRUE(ids.ok()) << ids.status();
    EXPECT_EQ(*ids, *original.Encode(text, {.add_special_tokens = false}))
        << text;
  }
}

TEST(GgufTokenizerKeysTest, SpecialTokens) {
  GgufWriter writer = WriteGguf(TokenizerJson("stories"), "llama-bpe");
  writer.AddUint32("tokenizer.ggml.bos_token_id", 2043);
  writer.AddUint32("tokenizer.ggml.eos_token_id", 2044);
  writer.AddString("tokenizer.chat_template", "{{ messages }}");
  auto tokenizer = Load(writer);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_THAT((*tokenizer)->bos_id(), Optional(2043));
  EXPECT_THAT((*tokenizer)->eos_id(), Optional(2044));
  EXPECT_THAT((*tokenizer)->chat_template(),
              Optional(std::string("{{ messages }}")));
  EXPECT_TRUE((*tokenizer)->IsSpecial(2043));
  EXPECT_THAT(*(*tokenizer)->Encode("Once upon a time"),
              ElementsAre(2043, 411, 438, 258, 384));
  EXPECT_THAT(*(*tokenizer)->Encode("<|end|>"), ElementsAre(2043, 2047));

  writer.AddBool("tokenizer.ggml.add_bos_token", false);
  writer.AddBool("tokenizer.ggml.add_eos_token", true);
  tokenizer = Load(writer);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_THAT(*(*tokenizer)->Encode("Once upon a time"),
              ElementsAre(411, 438, 258, 384, 2044));
}

// As files of models that were served elsewhere have it.
TEST(GgufTokenizerKeysTest, APaddingThatIsNotThereIsNone) {
  GgufWriter writer = WriteGguf(TokenizerJson("stories"), "llama-bpe");
  writer.AddUint32("tokenizer.ggml.eos_token_id", 2044);
  writer.AddUint32("tokenizer.ggml.padding_token_id", 4294967295u);
  auto tokenizer = Load(writer);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_THAT((*tokenizer)->eos_id(), Optional(2044));

  writer = WriteGguf(TokenizerJson("stories"), "llama-bpe");
  writer.AddUint32("tokenizer.ggml.eos_token_id", 4294967295u);
  EXPECT_EQ(Load(writer).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(GgufTokenizerKeysTest, SentencePieceStartsTextsWithItsBeginToken) {
  GgufWriter writer = WriteGguf(TokenizerJson("mistral"), "");
  auto tokenizer = Load(writer);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_THAT(*(*tokenizer)->Encode("Hello world"),
              ElementsAre(1, 22557, 1526));
  EXPECT_EQ(*(*tokenizer)->Decode({{22557, 1526}}), "Hello world");
  writer.AddBool("tokenizer.ggml.add_space_prefix", false);
  tokenizer = Load(writer);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_EQ(*(*tokenizer)->Decode({{22557, 1526}}), " Hello world");
}

// "<|user|>\n" of Phi-3's template is one token.
TEST(GgufTokenizerKeysTest, PhiDropsSpaceAfterTokensOfItsTemplate) {
  const json root = TokenizerJson("mistral");
  const auto ids = [&](const char* architecture, const char* text) {
    GgufWriter writer = WriteGguf(root, "");
    writer.AddString("general.architecture", architecture);
    const auto tokenizer = Load(writer);
    EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
    return *(*tokenizer)->Encode(text, {.add_special_tokens = false});
  };
  EXPECT_EQ(ids("phi3", "</s>\n Hello"), ids("phi3", "</s>Hello"));
  EXPECT_NE(ids("llama", "</s>\n Hello"), ids("llama", "</s>Hello"));
  EXPECT_NE(ids("phi3", "<s>\n Hello"), ids("phi3", "<s>Hello"));
}

// GLM's chat template begins texts by itself.
TEST(GgufTokenizerKeysTest, GlmSplitsAsLlama3DoesAndAddsNoBeginToken) {
  const json root = TokenizerJson("llama-3.1");
  const auto with_bos = [&](const std::string& pre) {
    GgufWriter writer = WriteGguf(root, pre);
    writer.AddUint32("tokenizer.ggml.bos_token_id", 128000);
    return Load(writer);
  };
  const auto glm = with_bos("glm4");
  const auto llama = with_bos("llama-bpe");
  ASSERT_TRUE(glm.ok() && llama.ok()) << glm.status() << llama.status();
  for (const char* const text : {"It's 1234567 o'clock,  isn't it?",
                                 "\n\n  x\t\t12 345a", "été 2024!"}) {
    const std::vector<TokenId> ids = *(*glm)->Encode(text);
    EXPECT_EQ(ids, *(*llama)->Encode(text, {.add_special_tokens = false}));
    EXPECT_NE(ids, *(*llama)->Encode(text));
  }
}

TEST(GgufTokenizerKeysTest, GptTwoAndDigits) {
  const json root = TokenizerJson("stories");
  for (const char* const pre : {"gpt-2", "default", "smollm"}) {
    const auto tokenizer = Load(WriteGguf(root, pre));
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
    json expected = root;
    json parts = json::array();
    if (std::string(pre) == "smollm") {
      parts.push_back({{"type", "Digits"}, {"individual_digits", true}});
    }
    parts.push_back({{"type", "ByteLevel"},
                     {"add_prefix_space", false},
                     {"trim_offsets", true},
                     {"use_regex", true}});
    expected["pre_tokenizer"] = {{"type", "Sequence"},
                                 {"pretokenizers", parts}};
    const auto original = LoadTokenizerJson(expected.dump());
    ASSERT_TRUE(original.ok()) << original.status();
    for (const char* const text :
         {"It's 1234 o'clock,  isn't it?", "\n\n  x\t\t12 345a", "été 2024!"}) {
      EXPECT_EQ(*(*tokenizer)->Encode(text, {.add_special_tokens = false}),
                *(*original)->Encode(text, {.add_special_tokens = false}));
    }
  }
}

TEST(GgufTokenizerKeysTest, BrokenMetadataNameFileAndKey) {
  using Change = std::function<void(GgufWriter&)>;
  const json stories = TokenizerJson("stories");
  const std::vector<std::pair<std::string, Change>> broken = {
      {"tokenizer.ggml.tokens",
       [](GgufWriter& w) { w.AddStrings("tokenizer.ggml.tokens", {}); }},
      {"tokenizer.ggml.tokens",
       [](GgufWriter& w) { w.AddStrings("tokenizer.ggml.tokens", {"\xff"}); }},
      {"tokenizer.ggml.token_type",
       [](GgufWriter& w) { w.AddInts("tokenizer.ggml.token_type", {1}); }},
      {"tokenizer.ggml.merges",
       [](GgufWriter& w) { w.AddStrings("tokenizer.ggml.merges", {"abc"}); }},
      {"not in the vocabulary",
       [](GgufWriter& w) {
         w.AddStrings("tokenizer.ggml.merges", {"qqq zzz"});
       }},
      {"tokenizer.ggml.bos_token_id",
       [](GgufWriter& w) { w.AddUint32("tokenizer.ggml.bos_token_id", 2048); }},
      {"tokenizer.ggml.scores",
       [](GgufWriter& w) {
         w.AddString("tokenizer.ggml.model", "llama");
         w.AddFloats("tokenizer.ggml.scores", {1.0f});
       }},
      {"tokenizer.chat_template",
       [](GgufWriter& w) { w.AddUint32("tokenizer.chat_template", 1); }},
  };
  for (const auto& [name, change] : broken) {
    GgufWriter writer = WriteGguf(stories, "llama-bpe");
    change(writer);
    const absl::Status status = Load(writer).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << name;
    EXPECT_THAT(status.message(), AllOf(HasSubstr("m.gguf"), HasSubstr(name)));
  }
  for (const char* const name :
       {"tokenizer.ggml.model", "tokenizer.ggml.tokens",
        "tokenizer.ggml.merges"}) {
    GgufWriter writer = WriteGguf(stories, "llama-bpe");
    writer.Remove(name);
    const absl::Status status = Load(writer).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kNotFound) << name;
    EXPECT_THAT(status.message(), AllOf(HasSubstr("m.gguf"), HasSubstr(name)));
  }
  GgufWriter writer = WriteGguf(stories, "bloom");
  EXPECT_EQ(Load(writer).status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(Load(writer).status().message(),
              AllOf(HasSubstr("tokenizer.ggml.pre"), HasSubstr("bloom")));
  writer.AddString("tokenizer.ggml.model", "bert");
  EXPECT_EQ(Load(writer).status().code(), absl::StatusCode::kUnimplemented);
}

TEST(GgufTokenizerKeysTest, SurvivesDamage) {
  std::mt19937 random(1);
  const json stories = TokenizerJson("stories");
  const json spiece = TokenizerJson("spiece");
  const std::string contents[] = {WriteGguf(stories, "llama-bpe").Finish(),
                                  WriteGguf(spiece, "").Finish()};
  int loaded = 0;
  const ModelDir dir;
  for (int i = 0; i < 400; ++i) {
    dir.Write("m.gguf", engine::Mutate(contents[i % 2], random));
    const auto tokenizer = Tokenizer::Load(dir.path() + "/m.gguf");
    if (!tokenizer.ok()) {
      EXPECT_FALSE(tokenizer.status().message().empty());
      continue;
    }
    ++loaded;
    const auto ids = (*tokenizer)->Encode(RandomText(&random, 40));
    if (ids.ok()) {
      EXPECT_TRUE((*tokenizer)->Decode(*ids).ok());
    }
  }
  EXPECT_GT(loaded, 0);
}

}  // namespace
}  // namespace baton::router
