// A model without files, for benchmarks: Llama-3-8B's shapes, random weights.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/cuda/device_runtime.h"
#include "engine/cuda/device_weights.h"
#include "engine/cuda/weight_tiles.h"
#include "engine/model_config.h"

namespace baton::engine::cuda {

ModelConfig Llama8b(int32_t layers);

// On the device that the thread uses; the stream outlives it.
class RandomWeights final {
 public:
  RandomWeights(const ModelConfig& config, WeightFormat format, Stream& stream);

  DeviceWeights weights;
  // Of the matrices; the embedding is not counted.
  int64_t elements = 0;

 private:
  void MakeBlock();
  std::byte* Take(int64_t bytes);
  template <typename T>
  T* Copy(const std::vector<T>& values);
  DeviceMatrix Matrix(int32_t outputs, int32_t inputs);

  const WeightFormat format_;
  Stream& stream_;
  // Tiles of a matrix of random weights; any number of its slices, one after
  // another, are tiles of another matrix.
  std::vector<std::byte> block_;
  std::vector<float> scales_;
};

}  // namespace baton::engine::cuda
