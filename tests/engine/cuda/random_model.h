// Models without files, for benchmarks: shapes that people use, random weights.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/cuda/device_runtime.h"
#include "engine/cuda/device_weights.h"
#include "engine/cuda/weight_tiles.h"
#include "engine/model_config.h"

namespace baton::engine::cuda {

// Llama-3-8B's, of 32 layers.
ModelConfig Llama8b(int32_t layers);
// Qwen3-30B-A3B's, of 48 layers with 128 experts.
ModelConfig Qwen30bA3b(int32_t layers);
// DeepSeek-V2-Lite's, of 27 layers: latent attention, 64 experts and two more
// that all tokens pass through, but for the first layer.
ModelConfig DeepseekV2Lite(int32_t layers);

// On the device that the thread uses; the stream outlives it.
class RandomWeights final {
 public:
  RandomWeights(const ModelConfig& config, WeightFormat format, Stream& stream);

  DeviceWeights weights;
  // Of the matrices that a token passes through; the embedding is not counted.
  int64_t elements = 0;
  // Of weights.matrix_bytes: an expert's, and those of all.
  int64_t expert_bytes = 0;
  int64_t all_expert_bytes = 0;

 private:
  void MakeBlock();
  std::byte* Take(int64_t bytes);
  template <typename T>
  T* Copy(const std::vector<T>& values);
  DeviceMatrix Matrix(int32_t outputs, int32_t inputs);
  // The first of so many, of which a token passes through `passed`.
  DeviceMatrix FirstOf(int32_t count, int32_t passed, int32_t outputs,
                       int32_t inputs);
  DeviceLatent Latent(const ModelConfig& config);
  // In bfloat16: scores of about 1 for rows that are normalized.
  DeviceMatrix Router(int32_t outputs, int32_t inputs);
  // bfloat16, random: tokens are not alike.
  const uint16_t* Embedding(const ModelConfig& config);

  const WeightFormat format_;
  Stream& stream_;
  // Tiles of a matrix of random weights; any number of its slices, one after
  // another, are tiles of another matrix.
  std::vector<std::byte> block_;
  std::vector<float> scales_;
};

}  // namespace baton::engine::cuda
