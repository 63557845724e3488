// Model directories made by tests: right ones, and ones broken in one place.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/json.h"
#include "engine/weights.h"

namespace baton::engine {

// A fresh directory that is removed with this.
class ModelDir final {
 public:
  ModelDir();
  ~ModelDir();
  ModelDir(const ModelDir&) = delete;
  ModelDir& operator=(const ModelDir&) = delete;

  const std::string& path() const { return path_; }
  std::string File(const std::string& name) const { return path_ + "/" + name; }
  void Write(const std::string& name, const std::string& content) const;
  void Remove(const std::string& name) const;

 private:
  std::string path_;
};

struct TestTensor {
  std::string name;
  std::string dtype;
  std::vector<int64_t> shape;
  std::string bytes;
};

// The bytes of a safetensors file with this header text and data.
std::string RawSafetensors(const std::string& header, const std::string& data);
// A well-formed file.
std::string Safetensors(const std::vector<TestTensor>& tensors);

// A valid config of two layers, and one for each other architecture.
nlohmann::json LlamaConfigJson();
nlohmann::json ConfigJson(const std::string& architecture);
// A config with some fields changed; a value of "(erase)" takes the field away.
nlohmann::json With(nlohmann::json config, const nlohmann::json& changes);

// What LoadModelConfig makes of a config.json.
absl::StatusOr<ModelConfig> LoadConfig(const nlohmann::json& config);
// The same of one that is right.
ModelConfig MustLoadConfig(const nlohmann::json& config);

// A directory or a file, loaded: what is right of it, or why it is not.
struct LoadedModel {
  absl::Status status;
  ModelConfig config;
  ModelWeights weights;
};
LoadedModel LoadModel(const std::string& path);

std::vector<float> AllRows(const WeightMatrix& matrix);

// All tensors that a model of LlamaConfigJson needs, lm_head included, as F32
// with small values that differ.
std::vector<TestTensor> LlamaTensors();

// LlamaTensors(), with these in the place of the weight of `module`.
std::vector<TestTensor> WithTensorsOf(const std::string& module,
                                      std::vector<TestTensor> tensors);

// The weights of a directory of these tensors whose config is
// LlamaConfigJson() with that "quantization_config". What it holds stays mapped
// though the directory is gone.
absl::StatusOr<ModelWeights> LoadQuantized(
    const std::vector<TestTensor>& tensors, const nlohmann::json& quantization);

// What that says of a "quantization_config" alone.
absl::Status QuantizationStatus(const nlohmann::json& quantization);

// Where the golden models of the repository lie.
std::string GoldenDir(const std::string& name);

}  // namespace baton::engine
