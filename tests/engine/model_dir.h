// Model directories made by tests: right ones, and ones broken in one place.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

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

// All tensors that a model of LlamaConfigJson needs, lm_head included, as F32
// with small values that differ.
std::vector<TestTensor> LlamaTensors();

// Where the golden models of the repository lie.
std::string GoldenDir(const std::string& name);

}  // namespace baton::engine
