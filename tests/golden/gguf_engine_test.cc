// The engine on a GGUF file against the engine on the directory that the file
// was made from.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "common/json.h"
#include "common/log.h"
#include "engine/engine_factory.h"
#include "tests/engine/model_dir.h"
#include "tests/golden/engine_driver.h"
#include "tests/golden/golden_model.h"
#include "tests/support/gguf_writer.h"
#include "tests/support/tiny_model.h"

namespace baton::engine {
namespace {

std::unique_ptr<Engine> MakeEngine(const std::string& model) {
  EngineOptions options;
  options.model_dir = model;
  options.num_threads = 1;
  options.kv_memory_bytes = int64_t{4} << 20;
  auto engine = CreateEngine(options);
  CHECK(engine.ok()) << engine.status();
  return *std::move(engine);
}

// All logits of a prompt and of ten tokens after it.
DrivenSequence Run(Engine& engine, const std::vector<TokenId>& prompt) {
  EngineDriver driver(engine);
  DrivenSequence sequence = driver.NewSequence(prompt, 10);
  for (size_t i = 0; i < prompt.size() + 9; ++i) {
    driver.Step({{&sequence, 1}}, /*append=*/true);
  }
  return sequence;
}

// The largest difference of two logits.
float Difference(const DrivenSequence& a, const DrivenSequence& b) {
  CHECK_EQ(a.logits.size(), b.logits.size());
  float worst = 0.0f;
  for (const auto& [position, logits] : a.logits) {
    const std::vector<float>& others = b.logits.at(position);
    CHECK_EQ(logits.size(), others.size());
    for (size_t i = 0; i < logits.size(); ++i) {
      worst = std::max(worst, std::abs(logits[i] - others[i]));
    }
  }
  return worst;
}

float DifferenceOfFile(const std::string& dir,
                       const std::vector<TokenId>& prompt,
                       bool experts_apart = false) {
  ModelDir files;
  files.Write("model.gguf", test::GgufOfModelDir(dir, experts_apart).Finish());
  const auto from_file = MakeEngine(files.File("model.gguf"));
  const auto from_dir = MakeEngine(dir);
  EXPECT_EQ(from_file->model().vocab_size, from_dir->model().vocab_size);
  EXPECT_EQ(from_file->model().bos_token_id, from_dir->model().bos_token_id);
  const DrivenSequence a = Run(*from_file, prompt);
  const DrivenSequence b = Run(*from_dir, prompt);
  EXPECT_EQ(a.tokens, b.tokens);
  return Difference(a, b);
}

// Also older files, whose attention and experts are stored otherwise.
TEST(GgufEngineTest, LatentAttentionAnswersAsTheDirectoryDoes) {
  for (const char* const name : {"deepseek_v2", "deepseek_v3"}) {
    const GoldenModel golden = LoadGoldenModel(name);
    ModelDir dir;
    std::ifstream in(golden.dir + "/config.json");
    nlohmann::json config = nlohmann::json::parse(in);
    if (config["rope_scaling"].is_object()) {
      // Files have one weight for what turns and for scores. 0.5 is exact.
      config["rope_scaling"]["mscale"] = 0.5;
      config["rope_scaling"]["mscale_all_dim"] = 0.5;
    }
    dir.Write("config.json", config.dump());
    std::filesystem::copy_file(golden.dir + "/model.safetensors",
                               dir.File("model.safetensors"));
    for (const bool older : {false, true}) {
      EXPECT_EQ(DifferenceOfFile(dir.path(), golden.prompts[2].tokens, older),
                0.0f)
          << name << " " << older;
    }
  }
}

TEST(GgufEngineTest, AnswersAsTheDirectoryDoes) {
  for (const char* const name : {"llama2", "llama_linear", "qwen2", "qwen3",
                                 "mixtral", "glm4_moe", "qwen2_yarn", "phi3"}) {
    const GoldenModel golden = LoadGoldenModel(name);
    // GGUF files of Qwen2 have no place for a sliding window.
    ModelDir dir;
    std::ifstream in(golden.dir + "/config.json");
    nlohmann::json config = nlohmann::json::parse(in);
    config.erase("use_sliding_window");
    dir.Write("config.json", config.dump());
    for (const auto& entry : std::filesystem::directory_iterator(golden.dir)) {
      const std::string file = entry.path().filename().string();
      if (file.find(".safetensors") != std::string::npos) {
        std::filesystem::copy_file(entry.path(), dir.File(file));
      }
    }
    EXPECT_EQ(DifferenceOfFile(dir.path(), golden.prompts[2].tokens), 0.0f)
        << name;
  }
}

// Of Qwen3's files all layers have experts.
TEST(GgufEngineTest, MixturesOfExpertsAnswerAsTheDirectoryDoes) {
  test::TinyModelOptions tiny;
  tiny.architecture = "Qwen3MoeForCausalLM";
  const ModelDir dir;
  ASSERT_TRUE(test::WriteTinyModel(dir.path(), tiny).ok());
  EXPECT_EQ(DifferenceOfFile(dir.path(), {3, 141, 59, 26, 53}), 0.0f);
}

// Whose files have more than a directory says, and less: experts in MXFP4, and
// no limit, which all of these models share.
TEST(GgufEngineTest, GptOssAnswersAsTheDirectoryDoes) {
  const GoldenModel golden = LoadGoldenModel("gpt_oss");
  ModelDir dir;
  std::ifstream in(golden.dir + "/config.json");
  auto config = nlohmann::json::parse(in);
  config["swiglu_limit"] = 7.0;
  dir.Write("config.json", config.dump());
  std::filesystem::copy_file(golden.dir + "/model.safetensors",
                             dir.File("model.safetensors"));
  EXPECT_EQ(DifferenceOfFile(dir.path(), golden.prompts.back().tokens), 0.0f);
}

TEST(GgufEngineTest, ExpertsMayHaveTensorsOfTheirOwn) {
  const GoldenModel golden = LoadGoldenModel("mixtral");
  EXPECT_EQ(DifferenceOfFile(golden.dir, golden.prompts[2].tokens,
                             /*experts_apart=*/true),
            0.0f);
}

TEST(GgufEngineTest, FrequencyFactorsAreLlama3Scaling) {
  const GoldenModel golden = LoadGoldenModel("llama3");
  // The factors are rounded to float32.
  EXPECT_LE(DifferenceOfFile(golden.dir, golden.prompts[2].tokens),
            golden.max_error / 4);
}

// Of SmolLM3's files every fourth layer knows no positions.
TEST(GgufEngineTest, SmolLm3AnswersAsTheDirectoryDoes) {
  test::TinyModelOptions tiny;
  tiny.architecture = "SmolLM3ForCausalLM";
  tiny.layers = 5;
  const ModelDir dir;
  ASSERT_TRUE(test::WriteTinyModel(dir.path(), tiny).ok());
  EXPECT_EQ(DifferenceOfFile(dir.path(), {3, 141, 59, 26, 53}), 0.0f);
}

// Whose files do not say by what scores are divided: by the length of heads.
TEST(GgufEngineTest, Gemma3AnswersAsTheDirectoryDoes) {
  const GoldenModel golden = LoadGoldenModel("gemma3");
  ModelDir dir;
  std::ifstream in(golden.dir + "/config.json");
  auto config = nlohmann::json::parse(in);
  config["query_pre_attn_scalar"] = config.at("head_dim");
  dir.Write("config.json", config.dump());
  std::filesystem::copy_file(golden.dir + "/model.safetensors",
                             dir.File("model.safetensors"));
  EXPECT_EQ(DifferenceOfFile(dir.path(), golden.prompts.back().tokens), 0.0f);
}

TEST(GgufEngineTest, LongRopeIsItsFactors) {
  const GoldenModel golden = LoadGoldenModel("phi3_long");
  // They are rounded to float32.
  EXPECT_LE(DifferenceOfFile(golden.dir, golden.prompts[2].tokens),
            golden.max_error / 4);
}

TEST(GgufEngineTest, TheDemoModelAnswersTheSame) {
  EXPECT_EQ(DifferenceOfFile(std::string(BATON_SOURCE_DIR) + "/models/stories",
                             {2043, 411, 438, 258, 384}),
            0.0f);
}

}  // namespace
}  // namespace baton::engine
