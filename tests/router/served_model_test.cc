#include "router/served_model.h"

#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "common/gguf/gguf_tensor_type.h"
#include "common/json.h"
#include "tests/router/harmony_model.h"
#include "tests/support/gguf_writer.h"
#include "tests/support/scratch_dir.h"

namespace baton::router {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class ServedModelTest : public testing::Test {
 protected:
  ServedModelTest() : dir_(scratch_.path() + "/served_model") {
    std::filesystem::create_directory(dir_);
    std::filesystem::copy_file(
        absl::StrCat(BATON_SOURCE_DIR, "/models/stories/tokenizer.json"),
        dir_ + "/tokenizer.json");
    Write("config.json", R"({"architectures": ["LlamaForCausalLM"],
      "vocab_size": 2048, "num_hidden_layers": 6,
      "max_position_embeddings": 512, "eos_token_id": 7})");
  }

  void Write(const std::string& file, const std::string& text) {
    std::ofstream(dir_ + "/" + file) << text;
  }
  absl::StatusOr<ServedModel> Load() { return LoadServedModel(dir_, ""); }
  std::string Error() { return std::string(Load().status().message()); }

  const test::ScratchDir scratch_;
  const std::string dir_;
};

TEST_F(ServedModelTest, ReadsWhatTheRouterNeeds) {
  const auto model = Load();
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ(model->name, "served_model");
  EXPECT_EQ(model->architecture, "LlamaForCausalLM");
  EXPECT_EQ(model->vocab_size, 2048);
  EXPECT_EQ(model->num_layers, 6);
  EXPECT_EQ(model->max_context, 512);
  EXPECT_THAT(model->eos_token_ids, ElementsAre(7));
  EXPECT_EQ(model->default_sampling.temperature, 1);
  EXPECT_NE(model->tokenizer, nullptr);
  EXPECT_EQ(LoadServedModel(dir_ + "/", "")->name, "served_model");
  EXPECT_EQ(LoadServedModel(dir_, "mine")->name, "mine");
}

TEST_F(ServedModelTest, AGgufFileHasAllOfIt) {
  test::GgufWriter writer;
  writer.AddString("general.architecture", "qwen2");
  writer.AddUint32("qwen2.block_count", 3);
  writer.AddUint32("qwen2.context_length", 64);
  writer.AddTensor("token_embd.weight", gguf::kF32, {4, 1}, std::string(16, 0));
  writer.AddString("tokenizer.ggml.model", "gpt2");
  writer.AddString("tokenizer.ggml.pre", "qwen2");
  writer.AddStrings("tokenizer.ggml.tokens", {"a", "b", "ab", "<|im_end|>"});
  writer.AddInts("tokenizer.ggml.token_type", {1, 1, 1, 3});
  writer.AddStrings("tokenizer.ggml.merges", {"a b"});
  writer.AddUint32("tokenizer.ggml.eos_token_id", 0);
  Write("tiny.gguf", writer.Finish());
  const auto model = LoadServedModel(dir_ + "/tiny.gguf", "");
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ(model->name, "tiny");
  EXPECT_EQ(model->architecture, "Qwen2ForCausalLM");
  EXPECT_EQ(model->vocab_size, 4);
  EXPECT_EQ(model->num_layers, 3);
  EXPECT_EQ(model->max_context, 64);
  EXPECT_THAT(model->eos_token_ids, ElementsAre(0, 3));
  EXPECT_THAT(*model->tokenizer->Encode("abb"), ElementsAre(2, 1));
  EXPECT_EQ(LoadServedModel(dir_ + "/tiny.gguf", "mine")->name, "mine");

  writer.Remove("qwen2.context_length");
  Write("tiny.gguf", writer.Finish());
  EXPECT_THAT(LoadServedModel(dir_ + "/tiny.gguf", "").status().message(),
              HasSubstr("qwen2.context_length"));
}

TEST_F(ServedModelTest, GenerationConfigGivesDefaultsAndEndTokens) {
  Write("generation_config.json", R"({"eos_token_id": [8, 9],
    "temperature": 0.6, "top_p": 0.95, "top_k": 20, "min_p": 0.125,
    "repetition_penalty": 1.25, "do_sample": true})");
  const auto model = Load();
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_THAT(model->eos_token_ids, ElementsAre(8, 9));
  const scheduling::SamplingParams& p = model->default_sampling;
  EXPECT_FLOAT_EQ(p.temperature, 0.6f);
  EXPECT_FLOAT_EQ(p.top_p, 0.95f);
  EXPECT_EQ(p.top_k, 20);
  EXPECT_EQ(p.min_p, 0.125f);
  EXPECT_EQ(p.repetition_penalty, 1.25f);
}

TEST_F(ServedModelTest, NoSamplingMeansGreedy) {
  Write("generation_config.json",
        R"({"temperature": 0.6, "do_sample": false})");
  EXPECT_EQ(Load()->default_sampling.temperature, 0);
  EXPECT_THAT(Load()->eos_token_ids, ElementsAre(7));  // of config.json
}

TEST_F(ServedModelTest, AbsentFieldsHaveTheModelFamilysDefaults) {
  Write("config.json", R"({"architectures": ["MistralForCausalLM"],
    "vocab_size": 2048, "num_hidden_layers": 6})");
  EXPECT_EQ(Load()->max_context, 131072);
  EXPECT_THAT(Load()->eos_token_ids, IsEmpty());
}

TEST_F(ServedModelTest, OfModelsThatReadImagesWhatIsOfTexts) {
  Write("config.json", R"({"architectures": ["Gemma3ForConditionalGeneration"],
      "eos_token_id": [1, 106], "text_config": {"num_hidden_layers": 34}})");
  const auto model = Load();
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ(model->architecture, "Gemma3ForCausalLM");
  EXPECT_EQ(model->vocab_size, 262208);
  EXPECT_EQ(model->num_layers, 34);
  EXPECT_EQ(model->max_context, 131072);
  EXPECT_THAT(model->eos_token_ids, ElementsAre(1, 106));
}

TEST_F(ServedModelTest, YarnStretchesTheContext) {
  const auto context = [&](const std::string& rope) {
    Write("config.json", R"({"architectures": ["Qwen2ForCausalLM"],
      "vocab_size": 2048, "num_hidden_layers": 6,
      "max_position_embeddings": 1000, )" +
                             rope + "}");
    const auto model = Load();
    return model.ok() ? absl::StrCat(model->max_context)
                      : std::string(model.status().message());
  };
  EXPECT_EQ(context(R"("rope_scaling": null)"), "1000");
  EXPECT_EQ(context(R"("rope_scaling": {"type": "linear", "factor": 4})"),
            "1000");
  EXPECT_EQ(context(R"("rope_scaling": {"type": "yarn", "factor": 4})"),
            "4000");
  EXPECT_EQ(context(R"("rope_parameters": {"rope_type": "yarn", "factor": 2.5,
                       "original_max_position_embeddings": 800})"),
            "2000");
  // Stretched already.
  EXPECT_EQ(context(R"("rope_scaling": {"rope_type": "yarn", "factor": 4,
                       "original_max_position_embeddings": 200})"),
            "1000");
  // Said twice, and taken back.
  EXPECT_EQ(context(R"("rope_scaling": {"type": "yarn", "factor": 4},
                       "rope_parameters": {"rope_type": "yarn", "factor": 4})"),
            "4000");
  EXPECT_EQ(context(R"("rope_scaling": {"type": "default"},
                       "rope_parameters": {"rope_type": "yarn", "factor": 4})"),
            "1000");
  EXPECT_THAT(context(R"("rope_scaling": 3)"), HasSubstr("rope_scaling"));
  EXPECT_THAT(context(R"("rope_scaling": {"type": "yarn", "factor": "x"})"),
              HasSubstr("rope_scaling.factor"));
  EXPECT_THAT(context(R"("rope_scaling": {"type": "yarn", "factor": 4,
                         "original_max_position_embeddings": 0})"),
              HasSubstr("rope_scaling.original_max_position_embeddings"));
}

TEST_F(ServedModelTest, ErrorsNameFileAndField) {
  EXPECT_THAT(std::string(LoadServedModel("/no/such", "").status().message()),
              HasSubstr("/no/such"));
  Write("config.json", R"({"architectures": ["LlamaForCausalLM"]})");
  EXPECT_THAT(Error(), HasSubstr("config.json"));
  EXPECT_THAT(Error(), HasSubstr("vocab_size"));
  Write("config.json", R"({"architectures": ["LlamaForCausalLM"],
    "vocab_size": 0, "num_hidden_layers": 6})");
  EXPECT_THAT(Error(), HasSubstr("vocab_size"));
  Write("config.json", R"({"architectures": ["LlamaForCausalLM"],
    "vocab_size": 10, "num_hidden_layers": 6, "eos_token_id": 10})");
  EXPECT_THAT(Error(), HasSubstr("eos_token_id"));
  Write("config.json", "{");
  EXPECT_THAT(Error(), HasSubstr("config.json"));
}

TEST_F(ServedModelTest, BadSamplingDefaultIsAnError) {
  Write("generation_config.json", R"({"top_p": 3})");
  EXPECT_THAT(Error(), HasSubstr("generation_config.json"));
  EXPECT_THAT(Error(), HasSubstr("top_p"));
  Write("generation_config.json", R"({"temperature": "hot"})");
  EXPECT_THAT(Error(), HasSubstr("temperature"));
}

TEST_F(ServedModelTest, ThinksIfItsTemplateAndItsTextHaveTheMarkers) {
  Write("chat_template.jinja", "{{ messages[0].content }}");
  EXPECT_FALSE(Load()->reasoning);
  Write("chat_template.jinja",
        "{{ messages[0].content.split('</think>')[-1] }}");
  EXPECT_TRUE(Load()->reasoning);
  // A token by itself is as good, unless it is a special one, which is left out
  // of answers.
  for (const bool special : {false, true}) {
    nlohmann::json tokenizer = nlohmann::json::parse(std::ifstream(
        std::string(BATON_SOURCE_DIR) + "/models/stories/tokenizer.json"));
    tokenizer["added_tokens"].push_back({{"id", 2048},
                                         {"content", "</think>"},
                                         {"single_word", false},
                                         {"lstrip", false},
                                         {"rstrip", false},
                                         {"normalized", false},
                                         {"special", special}});
    Write("tokenizer.json", tokenizer.dump());
    const auto model = Load();
    ASSERT_TRUE(model.ok()) << model.status();
    EXPECT_EQ(model->reasoning, !special);
  }
}

TEST_F(ServedModelTest, WritesHarmonyIfItsTemplateAndItsTokensAreOfIt) {
  const std::string original =
      absl::StrCat(BATON_SOURCE_DIR, "/models/stories");
  WriteHarmonyTokenizer(original, dir_);
  Write("chat_template.jinja", "{{ messages[0].content }}");
  EXPECT_FALSE(Load()->harmony);
  Write("chat_template.jinja", kHarmonyTemplate);
  auto model = Load();
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_TRUE(model->harmony);
  EXPECT_TRUE(model->reasoning);
  EXPECT_EQ(model->tool_calls, ToolCallFormat::kHarmony);
  // Text has what tells messages apart, and not what ends an answer.
  const Tokenizer& tokenizer = *model->tokenizer;
  const std::string text =
      "<|start|>assistant<|channel|>final<|constrain|>json<|message|>a<|end|>";
  const auto tokens = tokenizer.Encode(text + "<|return|><|call|>",
                                       {.add_special_tokens = false});
  ASSERT_TRUE(tokens.ok());
  EXPECT_EQ(*tokenizer.Decode(*tokens, /*skip_special_tokens=*/true), text);
  EXPECT_THAT(model->eos_token_ids,
              ElementsAre(7, *tokenizer.IdOf("<|return|>"),
                          *tokenizer.IdOf("<|call|>")));
  // What a client writes is no marker still.
  const auto plain = tokenizer.Encode(
      "<|end|>", {.add_special_tokens = false, .parse_special = false});
  EXPECT_GT(plain->size(), 1u);
  // Those that are no tokens cannot be told from text.
  WriteHarmonyTokenizer(original, dir_, {"<|constrain|>"});
  EXPECT_TRUE(Load()->harmony);
  WriteHarmonyTokenizer(original, dir_, {"<|channel|>"});
  model = Load();
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_FALSE(model->harmony);
  EXPECT_FALSE(model->reasoning);
  EXPECT_EQ(model->tool_calls, std::nullopt);
}

}  // namespace
}  // namespace baton::router
