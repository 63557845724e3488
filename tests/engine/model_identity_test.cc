#include "engine/model_identity.h"

#include <unistd.h>

#include <fstream>
#include <set>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/log.h"
#include "tests/engine/model_dir.h"

namespace baton::engine {
namespace {

using nlohmann::json;

std::string IdentityOf(const ModelDir& dir) {
  const auto config = LoadModelConfig(dir.path());
  CHECK(config.ok()) << config.status();
  const auto weights = LoadModelWeights(dir.path(), *config);
  CHECK(weights.ok()) << weights.status();
  return ModelIdentity(*config, *weights);
}

std::string IdentityOf(const std::vector<TestTensor>& tensors,
                       const json& config) {
  ModelDir dir;
  dir.Write("config.json", config.dump());
  dir.Write("model.safetensors", Safetensors(tensors));
  return IdentityOf(dir);
}

TEST(ModelIdentityTest, IsAStableHexString) {
  const std::string identity = IdentityOf(LlamaTensors(), LlamaConfigJson());
  EXPECT_THAT(identity, testing::MatchesRegex("[0-9a-f]+"));
  EXPECT_EQ(identity.size(), 32u);
  EXPECT_EQ(identity, IdentityOf(LlamaTensors(), LlamaConfigJson()));
}

TEST(ModelIdentityTest, DoesNotDependOnShardsOrUnusedThings) {
  const std::string identity = IdentityOf(LlamaTensors(), LlamaConfigJson());
  const std::vector<TestTensor> tensors = LlamaTensors();
  ModelDir dir;
  json config = LlamaConfigJson();
  config["eos_token_id"] = 5;
  config["transformers_version"] = "9";
  dir.Write("config.json", config.dump());
  const size_t half = tensors.size() / 2;
  std::vector<TestTensor> first(tensors.begin(), tensors.begin() + half);
  std::vector<TestTensor> second(tensors.begin() + half, tensors.end());
  second.push_back({"unused", "U8", {1}, "x"});
  dir.Write("1.safetensors", Safetensors(first));
  dir.Write("2.safetensors", Safetensors(second));
  json index;
  for (const TestTensor& t : first)
    index["weight_map"][t.name] = "1.safetensors";
  for (const TestTensor& t : second) {
    index["weight_map"][t.name] = "2.safetensors";
  }
  dir.Write("model.safetensors.index.json", index.dump());
  EXPECT_EQ(IdentityOf(dir), identity);
}

TEST(ModelIdentityTest, SeesEveryTensorAndField) {
  std::set<std::string> seen = {IdentityOf(LlamaTensors(), LlamaConfigJson())};
  size_t expected = 1;
  for (size_t i = 0; i < LlamaTensors().size(); ++i) {
    std::vector<TestTensor> tensors = LlamaTensors();
    // One bit of one weight.
    tensors[i].bytes[tensors[i].bytes.size() / 2] ^= 1;
    seen.insert(IdentityOf(tensors, LlamaConfigJson()));
    EXPECT_EQ(seen.size(), ++expected) << tensors[i].name;
  }
  const std::vector<std::pair<std::string, json>> changes = {
      {"rope_theta", 20000.0},
      {"rms_norm_eps", 1e-6},
      {"max_position_embeddings", 65},
      {"tie_word_embeddings", true},
      {"rope_scaling", {{"type", "linear"}, {"factor", 2}}},
      {"architectures", {"MistralForCausalLM"}}};
  for (const auto& [field, value] : changes) {
    json config = LlamaConfigJson();
    config[field] = value;
    seen.insert(IdentityOf(LlamaTensors(), config));
    EXPECT_EQ(seen.size(), ++expected) << field;
  }
  json narrower = LlamaConfigJson();
  narrower["architectures"] = {"MistralForCausalLM"};
  narrower["sliding_window"] = 8;
  seen.insert(IdentityOf(LlamaTensors(), narrower));
  EXPECT_EQ(seen.size(), ++expected);
}

TEST(ModelIdentityTest, SeesEveryExpert) {
  const ModelDir dir;
  const auto bytes_of = [](const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(in), {});
  };
  const std::string weights =
      bytes_of(GoldenDir("mixtral") + "/model.safetensors");
  const json config =
      json::parse(bytes_of(GoldenDir("mixtral") + "/config.json"));
  const auto identity_with = [&](const json& changes, size_t changed_byte) {
    dir.Write("config.json", With(config, changes).dump());
    std::string changed = weights;
    if (changed_byte > 0) changed[changed.size() - changed_byte] ^= 1;
    dir.Write("model.safetensors", changed);
    return IdentityOf(dir);
  };
  std::set<std::string> seen = {identity_with({}, 0)};
  size_t expected = 1;
  seen.insert(identity_with({{"num_experts_per_tok", 1}}, 0));
  EXPECT_EQ(seen.size(), ++expected);
  // All over the file.
  for (size_t byte = 1; byte < weights.size() / 2; byte += 5000) {
    seen.insert(identity_with({}, byte));
    EXPECT_EQ(seen.size(), ++expected) << byte;
  }
}

// Beyond 64 MiB the content is sampled: the first and last bytes of a tensor
// are always seen. The file is sparse, so it costs no disk.
TEST(ModelIdentityTest, SamplesLargeModels) {
  constexpr int64_t kVocab = 1200000;
  constexpr int64_t kEmbeddingBytes = kVocab * 16 * 4;
  json config = LlamaConfigJson();
  config["vocab_size"] = kVocab;
  config["tie_word_embeddings"] = true;
  ModelDir dir;
  dir.Write("config.json", config.dump());
  // The embedding last: its bytes are those that the file is lengthened by.
  std::vector<TestTensor> tensors = LlamaTensors();
  tensors.pop_back();
  json header = json::object();
  std::string data;
  for (size_t i = 1; i < tensors.size(); ++i) {
    const size_t begin = data.size();
    data += tensors[i].bytes;
    header[tensors[i].name] = {{"dtype", "F32"},
                               {"shape", tensors[i].shape},
                               {"data_offsets", {begin, data.size()}}};
  }
  header[tensors[0].name] = {
      {"dtype", "F32"},
      {"shape", {kVocab, 16}},
      {"data_offsets", {data.size(), data.size() + kEmbeddingBytes}}};
  const std::string start = RawSafetensors(header.dump(), data);
  const std::string path = dir.File("model.safetensors");
  const auto identity_with = [&](int64_t offset, char byte) {
    dir.Write("model.safetensors", start);
    PCHECK(truncate(path.c_str(), start.size() + kEmbeddingBytes) == 0);
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<int64_t>(start.size()) + offset);
    file.put(byte);
    CHECK(file.flush());
    file.close();
    return IdentityOf(dir);
  };
  const std::string zeros = identity_with(0, 0);
  EXPECT_EQ(zeros, identity_with(0, 0));
  EXPECT_NE(zeros, identity_with(0, 1));
  EXPECT_NE(zeros, identity_with(4095, 1));
  EXPECT_NE(zeros, identity_with(kEmbeddingBytes - 1, 1));
  // Evenly between: piece 5 of 16.
  EXPECT_NE(zeros, identity_with((kEmbeddingBytes - 4096) * 5 / 15 + 7, 1));
  // Between two pieces nothing is read; the header says so.
  EXPECT_EQ(zeros, identity_with(5000, 1));
}

TEST(ModelIdentityTest, SeesWhatAMixtureComputes) {
  const auto config = LoadModelConfig(GoldenDir("glm4_moe"));
  ASSERT_TRUE(config.ok()) << config.status();
  std::set<std::string> seen = {ConfigIdentity(*config)};
  ModelConfig changed = *config;
  changed.rotary_dim = 0;
  seen.insert(ConfigIdentity(changed));
  changed = *config;
  changed.experts.scale = 1.25;
  seen.insert(ConfigIdentity(changed));
  changed = *config;
  changed.experts.shared = 0;
  seen.insert(ConfigIdentity(changed));
  changed = *config;
  changed.experts.score = ExpertsConfig::Score::kSoftmax;
  seen.insert(ConfigIdentity(changed));
  EXPECT_EQ(seen.size(), 5u);
}

TEST(ModelIdentityTest, SeesHowYarnStretches) {
  const auto config = LoadModelConfig(GoldenDir("qwen2_yarn"));
  ASSERT_TRUE(config.ok()) << config.status();
  std::set<std::string> seen = {ConfigIdentity(*config)};
  const auto with = [&](auto change) {
    RopeScaling scaling = config->rope_scaling;
    change(scaling);
    ModelConfig changed = *config;
    changed.rope_scaling = scaling;
    seen.insert(ConfigIdentity(changed));
  };
  with([](RopeScaling& s) { s.factor = 2; });
  with([](RopeScaling& s) { s.beta_fast = 3; });
  with([](RopeScaling& s) { s.beta_slow = 0.5; });
  with([](RopeScaling& s) { s.truncate = false; });
  with([](RopeScaling& s) { s.attention_factor = 1; });
  with([](RopeScaling& s) { s.original_max_position = 64; });
  EXPECT_EQ(seen.size(), 7u);
}

TEST(ModelIdentityTest, SeesWhichLayersTurn) {
  auto config = LoadModelConfig(GoldenDir("smollm3"));
  ASSERT_TRUE(config.ok()) << config.status();
  std::set<std::string> seen = {ConfigIdentity(*config)};
  config->layer_turns = {false, true};
  seen.insert(ConfigIdentity(*config));
  config->layer_turns.clear();
  seen.insert(ConfigIdentity(*config));
  EXPECT_EQ(seen.size(), 3u);
}

TEST(ModelIdentityTest, SeesWhatGemmaHas) {
  const auto config = LoadModelConfig(GoldenDir("gemma3"));
  ASSERT_TRUE(config.ok()) << config.status();
  std::set<std::string> seen = {ConfigIdentity(*config)};
  const auto with = [&](auto change) {
    ModelConfig changed = *config;
    change(changed);
    seen.insert(ConfigIdentity(changed));
  };
  with([](ModelConfig& c) { c.post_norms = false; });
  with([](ModelConfig& c) { c.activation = Activation::kSilu; });
  with([](ModelConfig& c) { c.embedding_scale = 1; });
  with([](ModelConfig& c) { c.query_scalar = 15; });
  with([](ModelConfig& c) { c.sliding_rope_theta = 51; });
  with([](ModelConfig& c) { c.sliding_rope_theta.reset(); });
  EXPECT_EQ(seen.size(), 7u);
  // A GGUF file has the same norms, as they are.
  with([](ModelConfig& c) { c.norm_offset = 0; });
  EXPECT_EQ(seen.size(), 7u);
}

TEST(ModelIdentityTest, SamplesExpertsLess) {
  constexpr int64_t kInner = 600000;
  constexpr int64_t kBytes = kInner * 16 * 4;
  json config = ConfigJson("MixtralForCausalLM");
  config["intermediate_size"] = kInner;
  config["num_hidden_layers"] = 1;
  config["num_local_experts"] = config["num_experts_per_tok"] = 1;
  json header = json::object();
  std::string data;
  const std::string block = "model.layers.0.block_sparse_moe.";
  std::vector<TestTensor> tensors = LlamaTensors();
  tensors.push_back(
      {block + "gate.weight", "F32", {1, 16}, std::string(16 * 4, '\1')});
  for (const TestTensor& tensor : tensors) {
    header[tensor.name] = {
        {"dtype", "F32"},
        {"shape", tensor.shape},
        {"data_offsets", {data.size(), data.size() + tensor.bytes.size()}}};
    data += tensor.bytes;
  }
  int64_t end = static_cast<int64_t>(data.size());
  for (const char* const part : {"w1", "w2", "w3"}) {
    const bool down = part == std::string("w2");
    header[block + "experts.0." + part + ".weight"] = {
        {"dtype", "F32"},
        {"shape", {down ? 16 : kInner, down ? kInner : 16}},
        {"data_offsets", {end, end + kBytes}}};
    end += kBytes;
  }
  const ModelDir dir;
  dir.Write("config.json", config.dump());
  const std::string start = RawSafetensors(header.dump(), data);
  const std::string path = dir.File("model.safetensors");
  const auto identity_with = [&](int64_t offset) {
    dir.Write("model.safetensors", start);
    PCHECK(truncate(path.c_str(), start.size() + 3 * kBytes) == 0);
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<int64_t>(start.size()) + offset);
    file.put(1);
    CHECK(file.flush());
    file.close();
    return IdentityOf(dir);
  };
  // The second matrix: both ends, and nothing between.
  const std::string between = identity_with(kBytes + kBytes / 2);
  EXPECT_EQ(between, identity_with(kBytes + kBytes / 3));
  EXPECT_NE(between, identity_with(kBytes));
  EXPECT_NE(between, identity_with(kBytes + 4095));
  EXPECT_EQ(between, identity_with(kBytes + 4096));
  EXPECT_NE(between, identity_with(2 * kBytes - 1));
}

}  // namespace
}  // namespace baton::engine
