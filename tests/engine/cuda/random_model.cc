#include "tests/engine/cuda/random_model.h"
#include "tests/engine/cuda/host_tiles.h"

#include <algorithm>
#include <random>
#include <utility>

#include "common/log.h"
#include "engine/float_convert.h"
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

ModelConfig Qwen30bA3b(int32_t layers) {
  ModelConfig config;
  config.architecture = Architecture::kQwen3Moe;
  config.hidden_size = 2048;
  config.num_layers = layers;
  config.num_heads = 32;
  config.num_kv_heads = 4;
  config.head_dim = 128;
  config.experts.count = 128;
  config.experts.per_token = 8;
  config.experts.intermediate_size = 768;
  config.vocab_size = 151936;
  config.max_position = 16384;
  config.rms_norm_eps = 1e-6;
  config.rope_theta = 1000000.0;
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
    if (config.LayerHasExperts(i)) {
      const ExpertsConfig& experts = config.experts;
      layer.expert_router = Router(experts.count, config.hidden_size);
      layer.gate_up =
          Experts(experts, 2 * experts.intermediate_size, config.hidden_size);
      layer.down =
          Experts(experts, config.hidden_size, experts.intermediate_size);
      expert_bytes = layer.gate_up.bytes() + layer.down.bytes();
      all_expert_bytes += experts.count * expert_bytes;
    } else {
      layer.gate_up = Matrix(2 * config.intermediate_size, config.hidden_size);
      layer.down = Matrix(config.hidden_size, config.intermediate_size);
    }
    weights.layers.push_back(layer);
  }
  weights.final_norm = ones;
  weights.lm_head = Matrix(config.vocab_size, config.hidden_size);
  weights.embedding = Embedding(config);
  stream_.Wait();
}

const uint16_t* RandomWeights::Embedding(const ModelConfig& config) {
  // Not a whole number of rows: they differ wherever it comes again.
  constexpr int32_t kValues = (4 << 20) - 7;
  std::mt19937 bits(2);
  std::normal_distribution<float> normal(0.0f, 0.02f);
  std::vector<uint16_t> values(kValues);
  for (uint16_t& value : values) value = FloatToBf16(normal(bits));
  const int64_t count = int64_t{config.vocab_size} * config.hidden_size;
  std::byte* const embedding = Take(count * 2);
  for (int64_t at = 0; at < count; at += kValues) {
    stream_.CopyToDevice(embedding + at * 2, values.data(),
                         2 * std::min<int64_t>(kValues, count - at));
  }
  stream_.Wait();
  return reinterpret_cast<const uint16_t*>(embedding);
}

DeviceMatrix RandomWeights::Router(int32_t outputs, int32_t inputs) {
  std::mt19937 bits(3);
  std::normal_distribution<float> normal(0.0f, 0.02f);
  std::vector<float> values(int64_t{inputs} * outputs);
  for (float& value : values) value = normal(bits);
  WeightMatrix matrix;
  matrix.rows = outputs;
  matrix.columns = inputs;
  matrix.values.dtype = DType::kF32;
  matrix.values.shape = {outputs, inputs};
  matrix.values.bytes =
      absl::MakeSpan(reinterpret_cast<const std::byte*>(values.data()),
                     values.size() * sizeof(float));
  DeviceMatrix m;
  m.outputs = outputs;
  m.inputs = inputs;
  m.output_tiles = OutputTiles(outputs);
  m.padded_inputs = PaddedInputs(inputs);
  std::vector<std::byte> tiles(m.tile_bytes());
  PackTiles(m.format, {{&matrix, 0, outputs}}, inputs, 0, m.output_tiles,
            tiles.data(), /*scales=*/nullptr);
  m.tiles = Copy(tiles);
  weights.matrix_bytes += m.bytes();
  elements += int64_t{outputs} * inputs;
  return m;
}

DeviceMatrix RandomWeights::Experts(const ExpertsConfig& experts,
                                    int32_t outputs, int32_t inputs) {
  const int64_t before = elements;
  DeviceMatrix m = Matrix(experts.count * outputs, inputs);
  CHECK_EQ(outputs % kTileOutputs, 0);
  m.outputs = outputs;
  m.output_tiles /= experts.count;
  elements = before + int64_t{experts.per_token} * outputs * inputs;
  return m;
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
