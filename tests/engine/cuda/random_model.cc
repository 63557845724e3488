#include "tests/engine/cuda/random_model.h"
#include "tests/engine/cuda/host_tiles.h"

#include <algorithm>
#include <random>
#include <utility>

#include "common/log.h"
#include "engine/float_convert.h"
#include "engine/latent_config.h"
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

ModelConfig DeepseekV2Lite(int32_t layers) {
  ModelConfig config;
  config.architecture = Architecture::kDeepseekV2;
  config.hidden_size = 2048;
  config.num_layers = layers;
  config.num_heads = 16;
  config.latent.rank = 512;
  config.latent.nope_dim = 128;
  config.latent.rope_dim = 64;
  config.latent.value_dim = 128;
  SetLatentHeads(config);
  SetLatentScores(config);
  config.intermediate_size = 10944;
  config.experts.count = 64;
  config.experts.per_token = 6;
  config.experts.shared = 2;
  config.experts.intermediate_size = 1408;
  config.experts.normalized = false;
  config.layer_has_experts.assign(layers, true);
  config.layer_has_experts[0] = false;
  config.vocab_size = 102400;
  config.max_position = 16384;
  config.rms_norm_eps = 1e-6;
  config.rope_theta = 10000.0;
  return config;
}

namespace {

// Of magnitudes as weights have them.
std::vector<float> RandomValues(int64_t count, uint32_t seed) {
  std::mt19937 bits(seed);
  std::normal_distribution<float> normal(0.0f, 0.02f);
  std::vector<float> values(count);
  for (float& value : values) value = normal(bits);
  return values;
}

struct RandomTiles {
  std::vector<std::byte> tiles;
  std::vector<float> scales;  // where the format has them
};

RandomTiles MakeTiles(WeightFormat format, int32_t outputs, int32_t inputs,
                      uint32_t seed) {
  const std::vector<float> values =
      RandomValues(int64_t{outputs} * inputs, seed);
  WeightMatrix matrix;
  matrix.rows = outputs;
  matrix.columns = inputs;
  matrix.values.dtype = DType::kF32;
  matrix.values.shape = {outputs, inputs};
  matrix.values.bytes =
      absl::MakeSpan(reinterpret_cast<const std::byte*>(values.data()),
                     values.size() * sizeof(float));
  const int32_t tiles = OutputTiles(outputs);
  RandomTiles made;
  made.tiles.resize(tiles * TileBytes(format, PaddedInputs(inputs)));
  made.scales.resize(int64_t{tiles} * kTileOutputs);
  const int64_t padding = int64_t{tiles} * kTileOutputs - outputs;
  PackTiles(format, {{&matrix, 0, outputs}, {nullptr, 0, padding}}, inputs, 0,
            tiles, made.tiles.data(), made.scales.data());
  return made;
}

}  // namespace

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
    if (config.IsLatent()) {
      layer.latent = Latent(config);
    } else {
      layer.qkv = Matrix(q + 2 * kv, config.hidden_size);
    }
    layer.o = Matrix(config.hidden_size,
                     static_cast<int32_t>(config.AttentionSize()));
    if (config.LayerHasExperts(i)) {
      const ExpertsConfig& experts = config.experts;
      layer.expert_router = Router(experts.count, config.hidden_size);
      const auto matrix = [&](int32_t outputs, int32_t inputs) {
        return FirstOf(experts.all(), experts.passed(), outputs, inputs);
      };
      layer.gate_up = matrix(2 * experts.intermediate_size, config.hidden_size);
      layer.down = matrix(config.hidden_size, experts.intermediate_size);
      expert_bytes = layer.gate_up.bytes() + layer.down.bytes();
      all_expert_bytes += experts.all() * expert_bytes;
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
  std::vector<uint16_t> values;
  for (const float value : RandomValues(kValues, /*seed=*/2)) {
    values.push_back(FloatToBf16(value));
  }
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
  DeviceMatrix m;
  m.outputs = outputs;
  m.inputs = inputs;
  m.output_tiles = OutputTiles(outputs);
  m.padded_inputs = PaddedInputs(inputs);
  m.tiles = Copy(MakeTiles(m.format, outputs, inputs, /*seed=*/3).tiles);
  weights.matrix_bytes += m.bytes();
  elements += int64_t{outputs} * inputs;
  return m;
}

DeviceMatrix RandomWeights::FirstOf(int32_t count, int32_t passed,
                                    int32_t outputs, int32_t inputs) {
  const int64_t before = elements;
  DeviceMatrix m = Matrix(count * outputs, inputs);
  CHECK_EQ(outputs % kTileOutputs, 0);
  m.outputs = outputs;
  m.output_tiles /= count;
  elements = before + int64_t{passed} * outputs * inputs;
  return m;
}

DeviceLatent RandomWeights::Latent(const ModelConfig& config) {
  const LatentConfig& latent = config.latent;
  const int32_t heads = config.num_heads;
  const bool low_rank = latent.query_rank > 0;
  DeviceLatent made;
  made.down = Matrix(latent.query_rank + latent.rank + latent.rope_dim,
                     config.hidden_size);
  made.norm = Copy(std::vector<float>(latent.rank, 1.0f));
  if (low_rank) {
    made.query_norm = Copy(std::vector<float>(latent.query_rank, 1.0f));
  }
  made.queries = Matrix(heads * latent.query_dim(),
                        low_rank ? latent.query_rank : config.hidden_size);
  made.key_up = FirstOf(heads, heads, latent.rank, latent.nope_dim);
  made.value_up = FirstOf(heads, heads, latent.value_dim, latent.rank);
  return made;
}

void RandomWeights::MakeBlock() {
  RandomTiles made = MakeTiles(format_, /*outputs=*/512, /*inputs=*/4096,
                               /*seed=*/1);
  block_ = std::move(made.tiles);
  scales_ = std::move(made.scales);
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
