#include "tests/engine/cuda/random_model.h"
#include "tests/engine/cuda/host_tiles.h"

#include <algorithm>
#include <random>
#include <utility>

#include "common/log.h"
#include "engine/weight_matrix.h"

namespace baton::engine::cuda {

ModelConfig Llama8b(int32_t layers) {
  ModelConfig config;
  config.hidden_size = 4096;
  config.num_layers = layers;
  config.num_heads = 32;
  config.num_kv_heads = 8;
  config.head_dim = 128;
  config.intermediate_size = 14336;
  config.vocab_size = 128256;
  config.max_position = 16384;
  config.rms_norm_eps = 1e-5;
  config.rope_theta = 500000.0;
  return config;
}

RandomWeights::RandomWeights(const ModelConfig& config, WeightFormat format,
                             Stream& stream)
    : format_(format), stream_(stream) {
  MakeBlock();
  const int32_t q = config.num_heads * config.head_dim;
  const int32_t kv = config.num_kv_heads * config.head_dim;
  const float* const ones = Copy(std::vector<float>(config.hidden_size, 1.0f));
  for (int32_t i = 0; i < config.num_layers; ++i) {
    DeviceLayer layer;
    layer.input_norm = layer.post_attention_norm = ones;
    layer.qkv = Matrix(q + 2 * kv, config.hidden_size);
    layer.o = Matrix(config.hidden_size, q);
    layer.gate_up = Matrix(2 * config.intermediate_size, config.hidden_size);
    layer.down = Matrix(config.hidden_size, config.intermediate_size);
    weights.layers.push_back(layer);
  }
  weights.final_norm = ones;
  weights.lm_head = Matrix(config.vocab_size, config.hidden_size);
  const int64_t embedding_bytes =
      int64_t{config.vocab_size} * config.hidden_size * 2;
  std::byte* const embedding = Take(embedding_bytes);
  stream_.Fill(embedding, 0x3c, embedding_bytes);  // 0.0115
  weights.embedding = reinterpret_cast<const uint16_t*>(embedding);
  stream_.Wait();
}

void RandomWeights::MakeBlock() {
  constexpr int32_t kInputs = 4096;
  constexpr int32_t kOutputs = 512;
  std::mt19937 bits(1);
  std::normal_distribution<float> normal(0.0f, 0.02f);
  std::vector<float> values(int64_t{kInputs} * kOutputs);
  for (float& value : values) value = normal(bits);
  WeightMatrix matrix;
  matrix.rows = kOutputs;
  matrix.columns = kInputs;
  matrix.values.dtype = DType::kF32;
  matrix.values.shape = {kOutputs, kInputs};
  matrix.values.bytes =
      absl::MakeSpan(reinterpret_cast<const std::byte*>(values.data()),
                     values.size() * sizeof(float));
  constexpr int32_t kTiles = kOutputs / kTileOutputs;
  block_.resize(kTiles * TileBytes(format_, kInputs));
  scales_.resize(kOutputs);
  PackTiles(format_, {{&matrix, 0, kOutputs}}, kInputs, 0, kTiles,
            block_.data(), scales_.data());
}

std::byte* RandomWeights::Take(int64_t bytes) {
  auto buffer = DeviceBuffer::Allocate(bytes, "weights");
  CHECK(buffer.ok()) << buffer.status();
  weights.memory.push_back(*std::move(buffer));
  return weights.memory.back().data();
}

template <typename T>
T* RandomWeights::Copy(const std::vector<T>& values) {
  const auto bytes = static_cast<int64_t>(values.size() * sizeof(T));
  std::byte* const to = Take(bytes);
  stream_.CopyToDevice(to, values.data(), bytes);
  stream_.Wait();
  return reinterpret_cast<T*>(to);
}

DeviceMatrix RandomWeights::Matrix(int32_t outputs, int32_t inputs) {
  DeviceMatrix m;
  m.format = format_;
  m.outputs = outputs;
  m.inputs = inputs;
  m.output_tiles = OutputTiles(outputs);
  m.padded_inputs = PaddedInputs(inputs);
  std::byte* const tiles = Take(m.tile_bytes());
  const auto block_bytes = static_cast<int64_t>(block_.size());
  for (int64_t at = 0; at < m.tile_bytes(); at += block_bytes) {
    stream_.CopyToDevice(tiles + at, block_.data(),
                         std::min(block_bytes, m.tile_bytes() - at));
  }
  m.tiles = tiles;
  if (HasOutputScales(format_)) {
    m.scales = Copy(
        std::vector<float>(int64_t{m.output_tiles} * kTileOutputs, scales_[0]));
  }
  weights.matrix_bytes += m.bytes();
  elements += int64_t{outputs} * inputs;
  return m;
}

}  // namespace baton::engine::cuda
