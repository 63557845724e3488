#include "model_tools/quantize.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "common/gguf/gguf_tensor_type.h"
#include "engine/cpu/packed_model.h"
#include "engine/engine_factory.h"
#include "engine/model_identity.h"
#include "tests/engine/model_dir.h"
#include "tests/support/gguf_writer.h"
#include "tests/support/tiny_model.h"

namespace baton::model_tools {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class QuantizeTest : public testing::Test {
 protected:
  void SetUp() override {
    root_ = testing::TempDir() + "/quantize_test";
    fs::remove_all(root_);
    fs::create_directory(root_);
    options_.model = root_ + "/tiny";
    options_.to = "int4";
    options_.num_threads = 1;
    ASSERT_TRUE(test::WriteTinyModel(options_.model).ok());
  }
  void TearDown() override { fs::remove_all(root_); }

  std::string Dir(const std::string& name) const { return root_ + "/" + name; }

  absl::StatusOr<QuantizeResult> Run(const std::string& name) {
    return Quantize(Dir(name), options_, [](const char*, double) {});
  }

  std::string WriteGguf(const test::GgufWriter& writer) const {
    const std::string path = Dir("m.gguf");
    std::ofstream(path, std::ios::binary) << writer.Finish();
    return path;
  }

  static std::string IdentityOf(const std::string& model,
                                const std::string& weights) {
    engine::EngineOptions options;
    options.model_dir = model;
    options.weights = weights;
    options.num_threads = 1;
    options.kv_memory_bytes = 1 << 20;
    const auto engine = engine::CreateEngine(options);
    EXPECT_TRUE(engine.ok()) << engine.status();
    return engine.ok() ? (*engine)->model_identity() : "";
  }

  std::vector<std::string> Names(const std::string& name) const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(Dir(name))) {
      names.push_back(entry.path().filename());
    }
    std::sort(names.begin(), names.end());
    return names;
  }

  std::string root_;
  QuantizeOptions options_;
};

TEST_F(QuantizeTest, WritesWhatAnEngineLoads) {
  options_.files = {{"more.txt", "more"}};
  for (const char* to : {"bf16", "int8", "int4"}) {
    options_.to = to;
    options_.replace = true;
    std::map<std::string, double> progress;
    const auto result =
        Quantize(Dir("out"), options_, [&](const char* step, double share) {
          EXPECT_GE(share, progress[step]);
          EXPECT_LE(share, 1.0);
          progress[step] = share;
        });
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_TRUE(result->has_tokenizer);
    EXPECT_GT(result->bytes, 0);
    EXPECT_EQ(progress.size(), 2u);
    EXPECT_THAT(Names("out"),
                ElementsAre("baton.safetensors", "baton_packed.json",
                            "config.json", "generation_config.json", "more.txt",
                            "tokenizer.json", "tokenizer_config.json"));
    EXPECT_EQ(IdentityOf(Dir("out"), "auto"), IdentityOf(options_.model, to));
    const auto manifest = engine::cpu::ReadPackedManifest(Dir("out"));
    ASSERT_TRUE(manifest.ok()) << manifest.status();
    EXPECT_EQ(manifest->source, "tiny");
  }
  EXPECT_FALSE(fs::exists(Dir("out.partial")));
}

TEST_F(QuantizeTest, FromGguf) {
  options_.model = WriteGguf(test::GgufOfModelDir(Dir("tiny")));
  auto result = Run("out");
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_FALSE(result->has_tokenizer);
  EXPECT_EQ(IdentityOf(Dir("out"), "int4"), IdentityOf(options_.model, "int4"));

  // Llama 3.1's frequencies, which no config of others can say.
  test::GgufWriter writer = test::GgufOfModelDir(Dir("tiny"));
  std::string factors;
  for (int i = 0; i < 8; ++i) factors += test::NumberBytes(1.0f + 0.3f * i);
  writer.AddTensor("rope_freqs.weight", gguf::kF32, {8}, factors);
  options_.model = WriteGguf(writer);
  result = Run("factors");
  ASSERT_TRUE(result.ok()) << result.status();
  const auto config = engine::LoadModelConfig(Dir("factors"));
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->rope_scaling.factors,
            engine::LoadModelConfig(options_.model)->rope_scaling.factors);
  EXPECT_EQ(IdentityOf(Dir("factors"), "int4"),
            IdentityOf(options_.model, "int4"));
}

TEST_F(QuantizeTest, RefusesAGgufThatNoConfigDescribes) {
  test::GgufWriter writer = test::GgufOfModelDir(Dir("tiny"));
  for (int layer = 0; layer < 2; ++layer) {
    for (const auto& [name, size] :
         {std::pair("q", 64), std::pair("k", 32), std::pair("v", 32)}) {
      std::string bytes;
      for (int i = 0; i < size; ++i) bytes += test::NumberBytes(0.5f);
      writer.AddTensor(absl::StrCat("blk.", layer, ".attn_", name, ".bias"),
                       gguf::kF32, {size}, bytes);
    }
  }
  options_.model = WriteGguf(writer);
  EXPECT_NE(IdentityOf(options_.model, "int4"), "");
  const auto result = Run("out");
  EXPECT_EQ(result.status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(result.status().message()), HasSubstr("m.gguf"));
  EXPECT_FALSE(fs::exists(Dir("out")));
  EXPECT_FALSE(fs::exists(Dir("out.partial")));
}

TEST_F(QuantizeTest, SaysWhatIsWrong) {
  const auto code = [&](const std::string& name) {
    return Run(name).status().code();
  };
  ASSERT_TRUE(Run("out").ok());
  EXPECT_EQ(code("out"), absl::StatusCode::kAlreadyExists);
  options_.replace = true;
  // The model itself is never replaced, nor another folder.
  EXPECT_EQ(code("tiny"), absl::StatusCode::kAlreadyExists);
  EXPECT_TRUE(fs::exists(Dir("tiny/model.safetensors")));
  options_.model = Dir("out");
  const auto packed = Run("again");
  EXPECT_EQ(packed.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(packed.status().message()), HasSubstr(Dir("out")));
  options_.model = Dir("nothing");
  EXPECT_EQ(code("again"), absl::StatusCode::kNotFound);
  options_.model = Dir("tiny");
  options_.to = "int5";
  EXPECT_EQ(code("again"), absl::StatusCode::kInvalidArgument);
  options_.to = "int8";
  EXPECT_EQ(code("no/such/parent"), absl::StatusCode::kNotFound);
  fs::remove(Dir("tiny/model.safetensors"));
  EXPECT_EQ(code("again"), absl::StatusCode::kNotFound);
  EXPECT_FALSE(fs::exists(Dir("again.partial")));
}

}  // namespace
}  // namespace baton::model_tools
