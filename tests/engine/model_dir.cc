#include "tests/engine/model_dir.h"

#include <stdlib.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>

#include "common/log.h"

namespace baton::engine {

using nlohmann::json;

ModelDir::ModelDir() {
  std::string path = testing::TempDir() + "/baton_model_XXXXXX";
  PCHECK(mkdtemp(path.data()) != nullptr) << path;
  path_ = path;
}

ModelDir::~ModelDir() {
  std::error_code error;
  std::filesystem::remove_all(path_, error);
}

void ModelDir::Write(const std::string& name,
                     const std::string& content) const {
  std::ofstream out(File(name), std::ios::binary);
  out << content;
  CHECK(out.flush()) << name;
}

void ModelDir::Remove(const std::string& name) const {
  CHECK(std::filesystem::remove(File(name))) << name;
}

std::string RawSafetensors(const std::string& header, const std::string& data) {
  std::string file(8, '\0');
  for (int i = 0; i < 8; ++i) {
    file[i] = static_cast<char>(static_cast<uint64_t>(header.size()) >> 8 * i);
  }
  return file + header + data;
}

std::string Safetensors(const std::vector<TestTensor>& tensors) {
  json header = json::object();
  header["__metadata__"] = {{"format", "pt"}};
  std::string data;
  for (const TestTensor& tensor : tensors) {
    const size_t begin = data.size();
    data += tensor.bytes;
    header[tensor.name] = {{"dtype", tensor.dtype},
                           {"shape", tensor.shape},
                           {"data_offsets", {begin, data.size()}}};
  }
  return RawSafetensors(header.dump(), data);
}

json LlamaConfigJson() {
  return {{"architectures", {"LlamaForCausalLM"}},
          {"hidden_size", 16},
          {"num_hidden_layers", 2},
          {"num_attention_heads", 4},
          {"num_key_value_heads", 2},
          {"intermediate_size", 24},
          {"vocab_size", 32},
          {"max_position_embeddings", 64},
          {"rms_norm_eps", 1e-5},
          {"hidden_act", "silu"},
          {"bos_token_id", 1},
          {"eos_token_id", 2}};
}

json ConfigJson(const std::string& architecture) {
  json config = LlamaConfigJson();
  config["architectures"] = {architecture};
  return config;
}

json With(json config, const json& changes) {
  for (const auto& [name, value] : changes.items()) {
    if (value == "(erase)") {
      config.erase(name);
    } else {
      config[name] = value;
    }
  }
  return config;
}

LoadedModel LoadModel(const std::string& path) {
  LoadedModel loaded;
  auto config = LoadModelConfig(path);
  loaded.status = config.status();
  if (!config.ok()) return loaded;
  loaded.config = *std::move(config);
  auto weights = LoadModelWeights(path, loaded.config);
  loaded.status = weights.status();
  if (weights.ok()) loaded.weights = *std::move(weights);
  return loaded;
}

std::vector<float> AllRows(const WeightMatrix& matrix) {
  std::vector<float> values(matrix.rows * matrix.columns);
  ReadRows(matrix, 0, matrix.rows, absl::MakeSpan(values));
  return values;
}

absl::StatusOr<ModelConfig> LoadConfig(const json& config) {
  const ModelDir dir;
  dir.Write("config.json", config.dump());
  return LoadModelConfig(dir.path());
}

ModelConfig MustLoadConfig(const json& config) {
  const auto loaded = LoadConfig(config);
  CHECK(loaded.ok()) << loaded.status();
  return *loaded;
}

std::vector<TestTensor> LlamaTensors() {
  std::vector<TestTensor> tensors;
  const auto add = [&tensors](const std::string& name,
                              const std::vector<int64_t>& shape) {
    size_t count = 1;
    for (int64_t dimension : shape) count *= dimension;
    std::string bytes(count * sizeof(float), '\0');
    for (size_t i = 0; i < count; ++i) {
      const auto step = static_cast<float>((i * 37 + tensors.size() * 11) % 64);
      const float value = step / 64.0f - 0.5f;
      std::memcpy(bytes.data() + i * sizeof(float), &value, sizeof(float));
    }
    tensors.push_back({name, "F32", shape, bytes});
  };
  add("model.embed_tokens.weight", {32, 16});
  for (int layer = 0; layer < 2; ++layer) {
    const std::string prefix = "model.layers." + std::to_string(layer) + ".";
    add(prefix + "input_layernorm.weight", {16});
    add(prefix + "self_attn.q_proj.weight", {16, 16});
    add(prefix + "self_attn.k_proj.weight", {8, 16});
    add(prefix + "self_attn.v_proj.weight", {8, 16});
    add(prefix + "self_attn.o_proj.weight", {16, 16});
    add(prefix + "post_attention_layernorm.weight", {16});
    add(prefix + "mlp.gate_proj.weight", {24, 16});
    add(prefix + "mlp.up_proj.weight", {24, 16});
    add(prefix + "mlp.down_proj.weight", {16, 24});
  }
  add("model.norm.weight", {16});
  add("lm_head.weight", {32, 16});
  return tensors;
}

std::vector<TestTensor> WithTensorsOf(const std::string& module,
                                      std::vector<TestTensor> tensors) {
  std::vector<TestTensor> all = LlamaTensors();
  std::erase_if(
      all, [&](const TestTensor& t) { return t.name == module + ".weight"; });
  all.insert(all.end(), tensors.begin(), tensors.end());
  return all;
}

absl::StatusOr<ModelWeights> LoadQuantized(
    const std::vector<TestTensor>& tensors,
    const nlohmann::json& quantization) {
  ModelDir dir;
  nlohmann::json config = LlamaConfigJson();
  config["quantization_config"] = quantization;
  dir.Write("config.json", config.dump());
  dir.Write("model.safetensors", Safetensors(tensors));
  const auto loaded = LoadModelConfig(dir.path());
  if (!loaded.ok()) return loaded.status();
  return LoadModelWeights(dir.path(), *loaded);
}

absl::Status QuantizationStatus(const nlohmann::json& quantization) {
  return LoadQuantized(LlamaTensors(), quantization).status();
}

std::string GoldenDir(const std::string& name) {
  return std::string(BATON_SOURCE_DIR) + "/tests/golden/models/" + name;
}

}  // namespace baton::engine
