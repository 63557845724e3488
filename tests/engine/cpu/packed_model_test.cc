// A model that is mapped packed is the model that is packed at load, to the
// bit; and a broken one is an error that names the place.
#include "engine/cpu/packed_model.h"

#include <algorithm>
#include <cstring>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/json.h"
#include "common/log.h"
#include "engine/cpu/thread_team.h"
#include "engine/cpu/weight_loading.h"
#include "engine/engine_factory.h"
#include "engine/quantize_weights.h"
#include "engine/safetensors.h"
#include "tests/engine/model_dir.h"
#include "tests/engine/mutation.h"
#include "tests/engine/packed_dir.h"
#include "tests/support/tiny_model.h"

namespace baton::engine::cpu {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

constexpr WeightDtype kPackedDtypes[] = {WeightDtype::kBf16, WeightDtype::kInt8,
                                         WeightDtype::kInt4};

std::string ReadFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(in), {});
}

EngineOptions Options(const std::string& dir) {
  EngineOptions options;
  options.model_dir = dir;
  options.num_threads = 2;
  options.kv_memory_bytes = 2 << 20;
  return options;
}

std::unique_ptr<Engine> MakeEngine(const EngineOptions& options) {
  auto engine = CreateEngine(options);
  CHECK(engine.ok()) << engine.status();
  return *std::move(engine);
}

// The packed form of `source`, written to `dir`.
void WritePacked(const std::string& source, WeightDtype dtype,
                 const ModelDir& dir) {
  const absl::Status status = WritePackedDir(source, dtype, dir.path());
  ASSERT_TRUE(status.ok()) << status;
}

std::vector<float> Logits(Engine& engine) {
  std::vector<TokenId> tokens(40);
  for (size_t i = 0; i < tokens.size(); ++i) {
    tokens[i] = static_cast<TokenId>((i * 31 + 7) % engine.model().vocab_size);
  }
  std::vector<BlockId> blocks(4);
  std::iota(blocks.begin(), blocks.end(), 0);
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
  return result.sampled.at(0).logits;
}

void ExpectSameModel(const std::string& source,
                     absl::Span<const WeightDtype> dtypes = kPackedDtypes) {
  for (const WeightDtype dtype : dtypes) {
    SCOPED_TRACE(absl::StrCat(source, " ", WeightDtypeName(dtype)));
    const ModelDir dir;
    ASSERT_NO_FATAL_FAILURE(WritePacked(source, dtype, dir));
    EngineOptions options = Options(source);
    options.weights = std::string(WeightDtypeName(dtype));
    const auto packs = MakeEngine(options);
    const auto maps = MakeEngine(Options(dir.path()));
    EXPECT_EQ(maps->model_identity(), packs->model_identity());
    const std::string rounding = !TakesInt8(dtype)
                                     ? ""
                                     : absl::StrCat("-", WeightDtypeName(dtype),
                                                    "-", kQuantizationVersion);
    EXPECT_EQ(packs->model_identity().substr(32), rounding);
    EXPECT_EQ(maps->backend_name(), packs->backend_name());
    EXPECT_EQ(maps->weights_info().dtype, WeightDtypeName(dtype));
    EXPECT_EQ(maps->weights_info().bytes, packs->weights_info().bytes);
    EXPECT_EQ(maps->weights_info().bytes,
              PackedWeightsBytes(packs->model(), dtype));
    EXPECT_TRUE(maps->weights_info().mapped);
    EXPECT_FALSE(packs->weights_info().mapped);
    const std::vector<float> expected = Logits(*packs);
    const std::vector<float> found = Logits(*maps);
    ASSERT_EQ(found.size(), expected.size());
    ASSERT_FALSE(found.empty());
    EXPECT_EQ(std::memcmp(found.data(), expected.data(),
                          found.size() * sizeof(float)),
              0);
  }
}

TEST(PackedModelTest, IsTheModelThatIsPackedAtLoad) {
  test::TinyModelOptions odd;
  odd.hidden = 57;
  odd.heads = 6;
  odd.kv_heads = 3;
  odd.head_dim = 10;
  odd.intermediate = 101;
  odd.vocab_size = 301;
  odd.tie_word_embeddings = false;
  test::TinyModelOptions qwen2;
  qwen2.architecture = "Qwen2ForCausalLM";
  test::TinyModelOptions qwen3;
  qwen3.architecture = "Qwen3ForCausalLM";
  test::TinyModelOptions mixtral = odd;
  mixtral.architecture = "MixtralForCausalLM";
  test::TinyModelOptions experts;
  experts.architecture = "Qwen3MoeForCausalLM";
  experts.first_layer_dense = true;
  for (const test::TinyModelOptions& tiny :
       {test::TinyModelOptions(), odd, qwen2, qwen3, mixtral, experts}) {
    const ModelDir source;
    ASSERT_TRUE(test::WriteTinyModel(source.path(), tiny).ok());
    ExpectSameModel(source.path());
  }
  // All biases.
  ExpectSameModel(GoldenDir("llama_linear"));
  // A bias for the choice of experts, and one that all tokens share.
  ExpectSameModel(GoldenDir("glm4_moe"));
  // Several matrices in one.
  ExpectSameModel(GoldenDir("phi3"));
  // LongRoPE.
  ExpectSameModel(GoldenDir("phi3_long"));
  // Norms behind what layers give.
  ExpectSameModel(GoldenDir("gemma3"));
  // Latent attention, with queries from few numbers and without; shared
  // experts that are one in the file.
  ExpectSameModel(GoldenDir("deepseek_v2"));
  ExpectSameModel(GoldenDir("deepseek_v3"));
  ExpectSameModel(BATON_SOURCE_DIR "/models/stories");
  // Sinks, biases of experts, and experts in MXFP4.
  constexpr WeightDtype kMxfp4Too[] = {WeightDtype::kMxfp4, WeightDtype::kBf16,
                                       WeightDtype::kInt4};
  ExpectSameModel(GoldenDir("gpt_oss"), kMxfp4Too);
}

TEST(PackedModelTest, LiesInTheFileAsItIsRead) {
  test::TinyModelOptions tiny;
  tiny.tie_word_embeddings = false;
  const ModelDir source;
  ASSERT_TRUE(test::WriteTinyModel(source.path(), tiny).ok());
  for (const WeightDtype dtype : kPackedDtypes) {
    const ModelDir dir;
    ASSERT_NO_FATAL_FAILURE(WritePacked(source.path(), dtype, dir));
    const auto file = SafetensorsFile::Open(dir.File(kPackedWeightsFile));
    ASSERT_TRUE(file.ok()) << file.status();
    const auto address = [&](const std::string& name) {
      const TensorView* const view = (*file)->Find(name);
      return view == nullptr ? uintptr_t{0}
                             : reinterpret_cast<uintptr_t>(view->bytes.data());
    };
    uintptr_t last_matrix = 0;
    for (const TensorView& tensor : (*file)->tensors()) {
      const bool is_matrix = tensor.dtype == DType::kU8 &&
                             !absl::StrContains(tensor.name, "scales");
      if (!is_matrix) continue;
      EXPECT_EQ(address(tensor.name) % 64, 0u) << tensor.name;
      last_matrix = std::max(last_matrix, address(tensor.name));
    }
    EXPECT_EQ(address("layers.0.qkv") % 4096 % 64, 0u);
    EXPECT_GT(address("layers.0.input_norm"), last_matrix);
    EXPECT_GT(address("embedding"), address("final_norm"));
    EXPECT_EQ(address("lm_head.scales") != 0, dtype != WeightDtype::kBf16);
    if (dtype != WeightDtype::kBf16) {
      EXPECT_GT(address("layers.0.qkv.scales"), last_matrix);
      EXPECT_LT(address("layers.0.qkv.scales"), address("layers.0.input_norm"));
    }
  }
}

// A packed model with something changed.
class BrokenTest : public testing::Test {
 protected:
  void SetUp() override {
    test::TinyModelOptions tiny;
    tiny.tie_word_embeddings = false;
    ASSERT_TRUE(test::WriteTinyModel(source_.path(), tiny).ok());
    ASSERT_NO_FATAL_FAILURE(
        WritePacked(source_.path(), WeightDtype::kInt4, dir_));
    manifest_ = json::parse(ReadFile(dir_.File(kPackedManifestFile)));
    weights_ = ReadFile(dir_.File(kPackedWeightsFile));
    uint64_t length = 0;
    std::memcpy(&length, weights_.data(), sizeof(length));
    header_ = json::parse(weights_.substr(8, length));
    data_ = weights_.substr(8 + length);
  }

  absl::Status Load(const std::string& weights = "auto") {
    EngineOptions options = Options(dir_.path());
    options.weights = weights;
    return CreateEngine(options).status();
  }

  void ExpectError(absl::StatusCode code,
                   const std::vector<std::string>& parts) {
    const absl::Status status = Load();
    EXPECT_EQ(status.code(), code) << status;
    for (const std::string& part : parts) {
      EXPECT_THAT(std::string(status.message()), HasSubstr(part));
    }
  }

  void WriteManifest(const std::function<void(json&)>& change) {
    json manifest = manifest_;
    change(manifest);
    dir_.Write(kPackedManifestFile, manifest.dump());
  }

  // Padded to a whole number of `alignment` bytes.
  void WriteHeader(const json& header, size_t alignment = 64) {
    std::string text = header.dump();
    text.resize((text.size() + 8 + alignment - 1) / alignment * alignment - 8,
                ' ');
    if (alignment < 64 && (text.size() + 8) % 64 == 0) {
      text.append(alignment, ' ');
    }
    dir_.Write(kPackedWeightsFile, RawSafetensors(text, data_));
  }

  const ModelDir source_;
  const ModelDir dir_;
  json manifest_;
  json header_;
  std::string weights_;
  std::string data_;
};

TEST_F(BrokenTest, TheManifest) {
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  const std::string file = "baton_packed.json: ";
  ASSERT_TRUE(Load().ok()) << Load();
  WriteManifest([](json& m) { m["format"] = 1; });
  ExpectError(kInvalid, {file, "format is 1, it must be 2: quantize"});
  WriteManifest([](json& m) { m["format"] = "2"; });
  ExpectError(kInvalid, {file, "format is \"2\""});
  WriteManifest([](json& m) { m.erase("format"); });
  ExpectError(kInvalid, {file, "format"});
  WriteManifest([](json& m) { m["layout"]["gate_panels"] = 2; });
  ExpectError(kInvalid, {file, "layout.gate_panels is 2"});
  WriteManifest([](json& m) { m.erase("layout"); });
  ExpectError(kInvalid, {file, "layout"});
  WriteManifest([](json& m) { m["weights"] = "int5"; });
  ExpectError(kInvalid, {file, "weights is \"int5\""});
  WriteManifest([](json& m) { m["weights"] = "int8"; });
  ExpectError(kInvalid, {"baton.safetensors", "layers.0.qkv"});
  for (const json& bad : {json(7), json(""), json("A"),
                          json(std::string(65, 'a')), json("a\nb")}) {
    WriteManifest([&](json& m) { m["identity"] = bad; });
    ExpectError(kInvalid, {file, "identity"});
  }
  WriteManifest([](json& m) { m.erase("config"); });
  ExpectError(kInvalid, {file, "config"});
  dir_.Write(kPackedManifestFile, "[");
  ExpectError(kInvalid, {"baton_packed.json"});
  // Not a packed directory any more, and no other.
  dir_.Remove(kPackedManifestFile);
  ExpectError(absl::StatusCode::kNotFound, {"model.safetensors"});
}

TEST_F(BrokenTest, AnotherConfig) {
  json config = json::parse(ReadFile(dir_.File("config.json")));
  config["rope_theta"] = 20000.0;
  dir_.Write("config.json", config.dump());
  ExpectError(absl::StatusCode::kInvalidArgument,
              {"baton_packed.json: config", "quantize the model again"});
}

TEST_F(BrokenTest, OtherWeightsThanAskedFor) {
  EXPECT_TRUE(Load("int4").ok());
  for (const char* other : {"bf16", "int8"}) {
    const absl::Status status = Load(other);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("baton_packed.json: weights are int4, not " +
                          std::string(other)));
  }
  // A packed model is not packed again.
  const auto config = LoadModelConfig(dir_.path());
  ThreadTeam team(1);
  EXPECT_EQ(
      PackModel(dir_.path(), *config, WeightDtype::kInt8, team, [](double) {})
          .status()
          .code(),
      absl::StatusCode::kInvalidArgument);
}

TEST_F(BrokenTest, TheTensors) {
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  const std::string file = "baton.safetensors: tensor \"";
  // Every tensor is needed.
  for (const auto& [name, entry] : header_.items()) {
    if (name == "__metadata__") continue;
    json header = header_;
    header["another"] = entry;
    header.erase(name);
    WriteHeader(header);
    ExpectError(absl::StatusCode::kNotFound, {file + name + "\" is missing"});
    header = header_;
    header[name]["shape"].insert(header[name]["shape"].begin(), 1);
    WriteHeader(header);
    ExpectError(kInvalid, {file + name + "\" is "});
  }
  json header = header_;
  header["layers.1.down"]["dtype"] = "I8";
  WriteHeader(header);
  ExpectError(kInvalid, {file + "layers.1.down\" is I8", "must be U8"});
  // The same bytes in units of another width.
  header = header_;
  json& shape = header["layers.1.down"]["shape"];
  shape[0] = shape[0].get<int>() * 2;
  shape[2] = shape[2].get<int>() / 2;
  WriteHeader(header);
  ExpectError(kInvalid, {file + "layers.1.down\" is "});
  WriteHeader(header_, /*alignment=*/8);
  ExpectError(kInvalid, {"does not begin at a multiple of 64"});
  WriteHeader(header_);
  EXPECT_TRUE(Load().ok()) << Load();
  dir_.Write(kPackedWeightsFile, weights_.substr(0, weights_.size() - 1));
  ExpectError(kInvalid, {"baton.safetensors"});
  dir_.Remove(kPackedWeightsFile);
  ExpectError(absl::StatusCode::kNotFound, {"baton.safetensors"});
}

// Whatever the damage: an error, or a model that runs.
TEST_F(BrokenTest, AnyDamageIsNoCrash) {
  std::mt19937 random(20261122);
  const std::string header =
      weights_.substr(8, weights_.size() - 8 - data_.size());
  const std::string manifest = manifest_.dump();
  int failed = 0;
  for (int i = 0; i < 300; ++i) {
    dir_.Write(kPackedManifestFile, manifest);
    dir_.Write(kPackedWeightsFile, weights_);
    std::string data = data_;
    switch (i % 3) {
      case 0:
        dir_.Write(kPackedManifestFile, Mutate(manifest, random));
        break;
      case 1:
        dir_.Write(kPackedWeightsFile,
                   RawSafetensors(Mutate(header, random), data_));
        break;
      case 2:
        for (int k = 0; k < 50; ++k) {
          data[random() % data.size()] = static_cast<char>(random());
        }
        dir_.Write(kPackedWeightsFile, RawSafetensors(header, data));
        break;
    }
    const auto engine = CreateEngine(Options(dir_.path()));
    if (engine.ok()) {
      Logits(**engine);
    } else {
      ++failed;
      EXPECT_THAT(std::string(engine.status().message()), HasSubstr("baton"));
    }
  }
  EXPECT_GT(failed, 100);
}

}  // namespace
}  // namespace baton::engine::cpu
