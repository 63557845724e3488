#include "model_tools/quantize.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "common/gguf/gguf_tensor_type.h"
#include "common/json.h"
#include "engine/cpu/packed_model.h"
#include "engine/engine.h"
#include "engine/engine_factory.h"
#include "engine/model_identity.h"
#include "scheduling/step_plan.h"
#include "tests/engine/grouped_matrix.h"
#include "tests/engine/model_dir.h"
#include "tests/support/gguf_writer.h"
#include "tests/support/scratch_dir.h"
#include "tests/support/tiny_model.h"

namespace baton::model_tools {
namespace {

namespace fs = std::filesystem;
using engine::TestTensor;
using nlohmann::json;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// The tensors of LlamaTensors() with every matrix of the layers as a checkpoint
// with that "quantization_config" has it.
std::vector<TestTensor> GroupedTensors(const json& quantization) {
  std::vector<TestTensor> tensors;
  uint32_t seed = 0;
  for (const TestTensor& tensor : engine::LlamaTensors()) {
    absl::string_view module = tensor.name;
    if (!absl::ConsumeSuffix(&module, ".weight") ||
        !absl::EndsWith(module, "_proj")) {
      tensors.push_back(tensor);
      continue;
    }
    engine::GroupedMatrix matrix(tensor.shape[0], tensor.shape[1],
                                 quantization.at("group_size").get<int64_t>(),
                                 quantization.at("bits").get<int>(), ++seed);
    if (quantization.value("desc_act", false)) {
      std::reverse(matrix.group_of.begin(), matrix.group_of.end());
    }
    const std::string name(module);
    const std::vector<TestTensor> parts =
        quantization.at("quant_method").get<std::string>() == "awq"
            ? matrix.Awq(name)
            : matrix.Gptq(name, /*zero_offset=*/1, /*with_index=*/true);
    tensors.insert(tensors.end(), parts.begin(), parts.end());
  }
  return tensors;
}

// After a prompt of a few blocks.
std::vector<float> Logits(engine::Engine& engine) {
  std::vector<TokenId> tokens(40);
  for (size_t i = 0; i < tokens.size(); ++i) {
    tokens[i] = static_cast<TokenId>((i * 31 + 7) % engine.model().vocab_size);
  }
  const std::vector<BlockId> blocks = {0, 1, 2};
  const scheduling::SamplingParams sampling;
  scheduling::PlannedSequence s;
  s.sequence = SequenceId{1};
  s.tokens = tokens;
  s.blocks = blocks;
  s.sample = true;
  s.sampling = &sampling;
  s.history = tokens;
  s.prompt_length = 1;
  s.want_logits = true;
  scheduling::StepPlan plan;
  plan.sequences = {s};
  const scheduling::StepResult result = engine.Execute(plan, [](int32_t) {});
  EXPECT_TRUE(result.sampled.at(0).ok);
  return result.sampled.at(0).logits;
}

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && !a.empty() &&
         std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

class QuantizeTest : public testing::Test {
 protected:
  void SetUp() override {
    root_ = scratch_.path() + "/quantize_test";
    fs::create_directory(root_);
    options_.model = root_ + "/tiny";
    options_.to = "int4";
    options_.num_threads = 1;
    ASSERT_TRUE(test::WriteTinyModel(options_.model).ok());
  }

  std::string Dir(const std::string& name) const { return root_ + "/" + name; }

  absl::StatusOr<QuantizeResult> Run(const std::string& name) {
    return Quantize(Dir(name), options_, [](const char*, double) {});
  }

  std::string WriteGguf(const test::GgufWriter& writer) const {
    const std::string path = Dir("m.gguf");
    std::ofstream(path, std::ios::binary) << writer.Finish();
    return path;
  }

  // A checkpoint whose config.json has that "quantization_config"; its
  // directory.
  std::string WriteCheckpoint(const json& quantization,
                              const std::vector<TestTensor>& tensors) const {
    const std::string dir = Dir("checkpoint");
    fs::create_directory(dir);
    json config = engine::LlamaConfigJson();
    config["quantization_config"] = quantization;
    std::ofstream(dir + "/config.json") << config.dump();
    std::ofstream(dir + "/model.safetensors", std::ios::binary)
        << engine::Safetensors(tensors);
    return dir;
  }

  // Null when there is no such engine.
  static std::unique_ptr<engine::Engine> Open(const std::string& model,
                                              const std::string& weights) {
    engine::EngineOptions options;
    options.model_dir = model;
    options.weights = weights;
    options.num_threads = 1;
    options.kv_memory_bytes = 1 << 20;
    auto engine = engine::CreateEngine(options);
    EXPECT_TRUE(engine.ok()) << engine.status();
    return engine.ok() ? *std::move(engine) : nullptr;
  }

  static std::string IdentityOf(const std::string& model,
                                const std::string& weights) {
    const auto engine = Open(model, weights);
    return engine != nullptr ? engine->model_identity() : "";
  }

  // What Quantize makes of the checkpoint answers, to the bit, as the
  // checkpoint itself packed at load.
  void ExpectSameAnswers(const json& quantization) {
    options_.model =
        WriteCheckpoint(quantization, GroupedTensors(quantization));
    options_.replace = true;
    for (const char* to : {"bf16", "int8", "int4"}) {
      SCOPED_TRACE(absl::StrCat(quantization.dump(), " to ", to));
      options_.to = to;
      const auto result = Run("out");
      ASSERT_TRUE(result.ok()) << result.status();
      const auto packs = Open(options_.model, to);
      const auto maps = Open(Dir("out"), "auto");
      ASSERT_TRUE(packs != nullptr && maps != nullptr);
      EXPECT_FALSE(packs->weights_info().mapped);
      EXPECT_TRUE(maps->weights_info().mapped);
      EXPECT_EQ(maps->weights_info().dtype, to);
      EXPECT_EQ(maps->model_identity(), packs->model_identity());
      EXPECT_TRUE(SameBits(Logits(*maps), Logits(*packs)));
    }
  }

  std::vector<std::string> Names(const std::string& name) const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(Dir(name))) {
      names.push_back(entry.path().filename());
    }
    std::sort(names.begin(), names.end());
    return names;
  }

  test::ScratchDir scratch_;
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

TEST_F(QuantizeTest, TakesAnotherTokenizerAlong) {
  fs::rename(Dir("tiny") + "/tokenizer.json", Dir("tiny") + "/tiktoken.model");
  const auto result = Run("out");
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_TRUE(result->has_tokenizer);
  EXPECT_TRUE(fs::exists(Dir("out") + "/tiktoken.model"));
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

  // LongRoPE, windows, and layers that know no positions.
  test::TinyModelOptions smollm3;
  smollm3.architecture = "SmolLM3ForCausalLM";
  smollm3.layers = 5;
  ASSERT_TRUE(test::WriteTinyModel(Dir("smollm3"), smollm3).ok());
  const std::string golden =
      std::string(BATON_SOURCE_DIR) + "/tests/golden/models/";
  for (const std::string& dir : {golden + "phi3_long", golden + "phi3",
                                 golden + "gemma3", Dir("smollm3")}) {
    options_.model = WriteGguf(test::GgufOfModelDir(dir));
    const std::string name = "of_" + fs::path(dir).filename().string();
    result = Run(name);
    ASSERT_TRUE(result.ok()) << dir << ": " << result.status();
    EXPECT_EQ(IdentityOf(Dir(name), "int4"), IdentityOf(options_.model, "int4"))
        << dir;
  }

  writer = test::GgufOfModelDir(Dir("tiny"));
  writer.AddString("llama.rope.scaling.type", "yarn");
  writer.AddFloat("llama.rope.scaling.factor", 4.0f);
  options_.model = WriteGguf(writer);
  result = Run("yarn");
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(IdentityOf(Dir("yarn"), "int4"),
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

TEST_F(QuantizeTest, ToMxfp4WhereExpertsAreSo) {
  options_.to = "mxfp4";
  const auto dense = Run("out");
  EXPECT_EQ(dense.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(dense.status().message()),
              HasSubstr("the model has no experts"));
  EXPECT_FALSE(fs::exists(Dir("out")));
  options_.model = engine::GoldenDir("gpt_oss");
  const auto result = Run("out");
  ASSERT_TRUE(result.ok()) << result.status();
  const auto packs = Open(options_.model, "bf16");
  const auto maps = Open(Dir("out"), "auto");
  ASSERT_TRUE(packs != nullptr && maps != nullptr);
  EXPECT_EQ(maps->weights_info().dtype, "mxfp4");
  // Nothing was rounded.
  EXPECT_EQ(maps->model_identity(), packs->model_identity());
  EXPECT_TRUE(SameBits(Logits(*maps), Logits(*packs)));
}

TEST_F(QuantizeTest, FromGptq) {
  for (const int bits : {4, 8}) {
    for (const bool desc_act : {false, true}) {
      ExpectSameAnswers({{"quant_method", "gptq"},
                         {"bits", bits},
                         {"group_size", 8},
                         {"desc_act", desc_act}});
    }
  }
}

TEST_F(QuantizeTest, FromAwq) {
  ExpectSameAnswers({{"quant_method", "awq"},
                     {"bits", 4},
                     {"group_size", 8},
                     {"version", "gemm"}});
}

TEST_F(QuantizeTest, RefusesACheckpointThatItCannotRead) {
  const json gptq = {{"quant_method", "gptq"}, {"bits", 4}, {"group_size", 8}};
  const std::vector<TestTensor> tensors = GroupedTensors(gptq);
  const std::vector<std::pair<std::string, json>> unknown = {
      {"quant_method", "hqq"}, {"bits", 3}, {"checkpoint_format", "marlin"}};
  for (const auto& [field, value] : unknown) {
    json quantization = gptq;
    quantization[field] = value;
    options_.model = WriteCheckpoint(quantization, tensors);
    const absl::Status status = Run("out").status();
    EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented) << field;
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr(Dir("checkpoint/config.json")),
                      HasSubstr("quantization_config." + field)));
  }

  std::vector<TestTensor> broken = tensors;
  const auto zeros =
      std::find_if(broken.begin(), broken.end(), [](const TestTensor& tensor) {
        return absl::EndsWith(tensor.name, ".qzeros");
      });
  ASSERT_NE(zeros, broken.end());
  zeros->dtype = "F32";
  options_.model = WriteCheckpoint(gptq, broken);
  const absl::Status status = Run("out").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr(Dir("checkpoint/model.safetensors")),
                    HasSubstr(zeros->name)));
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
