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

}  // namespace
}  // namespace baton::engine
